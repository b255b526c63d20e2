// How many threads of other blocks have counted before this one.
#pragma once

// What this thread has written before, or another one of its block before a barrier, is seen by whoever counts later; and what
// was written by whoever has counted before is seen by this thread from here on, and behind a barrier by its block.
__device__ __forceinline__ int counted_before(int* count) {
    int before;
    asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;" : "=r"(before) : "l"(count) : "memory");
    return before;
}

// The same for who mostly is not the last, and wants the SM's L1 cache left as it is: what was written by whoever has counted
// before is seen from `see_counted` on.
__device__ __forceinline__ int counted_unseen(int* count) {
    int before;
    asm volatile("atom.release.gpu.global.add.s32 %0, [%1], 1;" : "=r"(before) : "l"(count) : "memory");
    return before;
}

__device__ __forceinline__ void see_counted() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
