// Programmatic dependent launch, from sm_90 on: a kernel's blocks start as soon as the kernel before it leaves room for them,
// not only when its last block has ended. `await_previous` waits for the end of the kernel before; `let_next_start` allows
// the next kernel to start.
//
// The rule. Every thread calls `await_previous` before it touches anything that the kernel before it may write or still read.
// Most kernels call `let_next_start` after that. So when such a kernel's successor starts, all kernels but the one directly
// before it have ended, and before it waits it may read whatever those wrote. A block that touches nothing may end without
// waiting, as long as another block of its kernel waits: a kernel must not end before the kernel before it.
//
// The exceptions. Products (`matmul_rows`, `matmul_many`, `matmul_wgmma`), and `attention_combine` and `all_reduce`, which
// stand before one, call `let_next_start` before they wait. So the kernels after them begin to fetch weights, keys and values
// at once, or when a product's own last weights have been requested. When a kernel that follows several of these starts, none
// of them need have ended, nor the kernel before them. Before its `await_previous` it may therefore read only what none of
// those writes: weights, the lists of slots, drafts, the number of the step, and keys and values of other layers and earlier
// steps.
//
// Steps follow each other without a gap, so the rule holds across steps. It takes for granted that a kernel begins with nothing
// in an SM's L1 cache that an earlier step has read. (On an H200 a stale length or list would change tokens at once.)
// `tests/eagle3/cupy/kernels/test_launches.py` follows the rule through several steps.
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
