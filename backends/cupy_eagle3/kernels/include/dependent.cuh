// Programmatic dependent launch, from sm_90 on: a kernel's blocks start as soon as the kernel before it leaves room, instead
// of when its last block has ended.
//
// Every thread calls `await_previous` before it touches anything that the kernel before it may write or still read, and a
// kernel calls `let_next_start` after that: so when a kernel starts, all but the one directly before it have ended, and it
// may read, before it waits, whatever the others wrote. A block that touches nothing may end without waiting, as long as
// another one of its kernel waits: a kernel that ended before the one before it would break that.
//
// Products, and what joins attention for one, call `let_next_start` before they wait, so that the kernels after them begin to
// fetch weights, keys and values at once, or when a product's own last ones are under way. When a kernel behind a row of
// these starts, none of them need have ended, nor the kernel before them; what comes before its `await_previous` may read
// what no such row, nor what may stand before one, writes: weights, the lists of slots, drafts, the number of the step, and
// keys and values of other layers and earlier steps.
//
// Steps follow each other without a gap, so the rule holds across them, and so does what it takes for granted: that a kernel
// begins with nothing in an SM's L1 cache that was read before, by an earlier step. (On an H200 a stale length or list would
// change tokens at once.) `tests/backends/cupy_eagle3/kernels/test_launches.py` follows the rule through a row of steps.
#pragma once

__device__ __forceinline__ void await_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
