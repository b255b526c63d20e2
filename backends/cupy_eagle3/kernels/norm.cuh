// RMSNorm of one row by one block: out = x · weight / sqrt(mean(x²) + eps), in float32, rounded once.
#pragma once
#include "bf16.cuh"
#include "block.cuh"

// `at(i)` gives element i of the row in float32.
template <int Width, int Threads, typename At>
__device__ __forceinline__ float inverse_rms(At at, float eps) {
    float squares = 0;
    for (int i = threadIdx.x; i < Width; i += Threads) {
        float x = at(i);
        squares = fmaf(x, x, squares);
    }
    return rsqrtf(block_sum<Threads>(squares) / Width + eps);
}

template <int Width, int Threads, typename At>
__device__ __forceinline__ void norm_row(bf16* out, At at, const bf16* weight, float eps) {
    float scale = inverse_rms<Width, Threads>(at, eps);
    for (int i = threadIdx.x; i < Width; i += Threads) out[i] = to_bf16(at(i) * scale * to_float(weight[i]));
}
