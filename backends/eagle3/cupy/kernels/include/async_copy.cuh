// Copies of 16 bytes from global to shared memory that do not pass through registers (sm_80 and later).
//
// A thread that reads only what it has copied itself needs no barrier: `await_copies` is enough.
#pragma once

// The address of `memory` within shared memory. It is the same for all lanes, but the compiler must not know that: NVRTC 13.0
// makes an instruction that no GPU knows of a copy with a cache policy whose address is the sum of one that is the same for all
// lanes and one that is not. What is added here is always zero: bit 31 of the mask of lanes before this one is never set.
__device__ __forceinline__ unsigned shared_address(const void* memory) {
    unsigned lanes_before;
    asm("mov.u32 %0, %%lanemask_lt;" : "=r"(lanes_before));
    return (unsigned)__cvta_generic_to_shared(memory) + (lanes_before >> 31);
}

const int LOAD = 16;  // bytes that a thread copies at a time

// 16 bytes from `global` to `shared`. What is copied here is read once per step, and would have left the L2 cache long before
// the next step anyway. So it is marked to leave first, and what passes from one kernel to the next stays.
__device__ __forceinline__ void copy_async(unsigned shared, const void* global) {
    unsigned long long policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "l"(policy)
                 : "memory");
}

// Makes one group of everything that this thread has copied since its last call.
__device__ __forceinline__ void end_of_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until all groups of this thread but the newest `Pending` have arrived.
template <int Pending>
__device__ __forceinline__ void await_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}
