// Copies of 16 bytes from global to shared memory that do not pass through registers (sm_80 and later).
//
// A thread that reads only what it has copied itself needs no barrier: `await_copies` is enough.
#pragma once

__device__ __forceinline__ void copy_async(void* shared, const void* global) {
    const unsigned to = (unsigned)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
}

// Everything copied since the last call is one group.
__device__ __forceinline__ void end_of_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Until all groups of this thread but the newest `Pending` have arrived.
template <int Pending>
__device__ __forceinline__ void await_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}
