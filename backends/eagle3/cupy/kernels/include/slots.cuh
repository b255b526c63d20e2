// What all kernels of a step agree on: rows, faults, time stamps.
//
// Slots that still decode are listed in `active[0 .. active_count)`, ascending. The rows of a step are theirs, packed:
// row a · T + t is token t of slot active[a]. A kernel is launched for all slots, and its blocks for slots that are done return
// at once.
#pragma once

enum Fault {
    TARGET_NOT_FINITE = 1,
    DRAFT_NOT_FINITE = 2,
    KV_INTEGRITY = 4,
    KV_EXHAUSTED = 8,
    MASK_INTEGRITY = 16,
};

// Where a step's phases end, in nanoseconds of the device's clock: `stamps[step][...]`.
enum Stamp { STEP_BEGAN, DRAFTED, VERIFIED, ACCEPTED, COMMITTED, STAMPS };

__device__ __forceinline__ long long device_nanoseconds() {
    long long now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}
