// Copies of 16 bytes from global to shared memory that do not pass through registers (sm_80 and later).
//
// A thread that reads only what it has copied itself needs no barrier: `await_copies` is enough.
#pragma once

// Where `memory` lies in shared memory. It is the same for all lanes, but the compiler must not know: where it adds an address
// that is the same for all lanes to one that is not, and a cache policy comes with them, it makes an instruction that no GPU
// knows (NVRTC 13.0). What is added here is zero, since no lane comes after the last.
__device__ __forceinline__ unsigned shared_address(const void* memory) {
    unsigned lanes_before;
    asm("mov.u32 %0, %%lanemask_lt;" : "=r"(lanes_before));
    return (unsigned)__cvta_generic_to_shared(memory) + (lanes_before >> 31);
}

const int LOAD = 16;  // bytes that a thread copies at a time

// Long before what is copied here is read again, it would have left the L2 cache anyway: so it is the first that may, and what
// lies between two kernels stays.
__device__ __forceinline__ void copy_async(unsigned shared, const void* global) {
    unsigned long long policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "l"(policy)
                 : "memory");
}

// Everything copied since the last call is one group.
__device__ __forceinline__ void end_of_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Until all groups of this thread but the newest `Pending` have arrived.
template <int Pending>
__device__ __forceinline__ void await_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}
