// Reductions over a block, in an order that depends on nothing but the block's size.
#pragma once

#define FULL_WARP 0xffffffffu

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
    for (int step = 16; step; step /= 2) value += __shfl_xor_sync(FULL_WARP, value, step);
    return value;
}

template <int Threads>
__device__ __forceinline__ float block_sum(float value) {
    __shared__ float sums[Threads / 32];
    value = warp_sum(value);
    __syncthreads();  // by now all threads have read the sums of an earlier call
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = value;
    __syncthreads();
    float total = 0;
#pragma unroll
    for (int warp = 0; warp < Threads / 32; ++warp) total += sums[warp];
    return total;
}
