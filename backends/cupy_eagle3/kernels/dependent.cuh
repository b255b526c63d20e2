// Programmatic dependent launch, from sm_90 on: a kernel's blocks start as soon as the kernel before it leaves room, instead
// of when its last block has ended.
//
// Every thread calls `await_previous` before it touches anything that another kernel writes, and then, not before,
// `let_next_start`. So when a kernel starts, all kernels but the one directly before it have ended: what comes before
// `await_previous` may read weights, and whatever the kernel before the previous one or an earlier one wrote. A kernel
// whose successor reads weights alone before it waits may let it start earlier: the successor waits for it all the same.
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
