// Which of a row's blocks comes last. All threads of a block call it, once what the block leaves for the row is written.
#pragma once

// True in thread 0 of the last of `blocks` blocks alone, which then may read what all of them have written. `finished`, zero
// before, is zero again.
__device__ __forceinline__ bool is_last_of_row(int* finished, int blocks) {
    __syncthreads();
    if (threadIdx.x != 0) return false;
    __threadfence();
    const bool last = atomicAdd(finished, 1) == blocks - 1;
    if (last) *finished = 0;
    __threadfence();
    return last;
}

// The same in all threads of the block, which read what others have written by `__ldcg`.
__device__ __forceinline__ bool is_last_block_of_row(int* finished, int blocks) {
    __shared__ bool last;
    const bool found = is_last_of_row(finished, blocks);
    if (threadIdx.x == 0) last = found;
    __syncthreads();
    return last;
}
