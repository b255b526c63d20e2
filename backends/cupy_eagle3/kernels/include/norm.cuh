// RMSNorm of one row by one block: x · weight / sqrt(mean(x²) + eps), in float32, rounded once.
#pragma once
#include "bf16.cuh"
#include "block.cuh"

// In two halves, between which a kernel may do something else: `load` asks for the row, `finish` norms it.
//
// `at(i)` gives element i of the row in float32, and is asked once, before any `put(i, x, normed)`. All elements of a thread
// are asked for together: one trip to memory for all, not one each.
template <int Width, int Threads>
struct NormRow {
    static const int EACH = (Width + Threads - 1) / Threads;
    float kept[EACH], factor[EACH];

    template <typename At>
    __device__ __forceinline__ void load(At at, const bf16* weight) {
#pragma unroll
        for (int n = 0; n < EACH; ++n) {
            const int i = threadIdx.x + n * Threads;
            kept[n] = i < Width ? at(i) : 0;
            factor[n] = i < Width ? to_float(weight[i]) : 0;
        }
    }

    template <typename Put>
    __device__ __forceinline__ void finish(float eps, Put put) const {
        float squares = 0;
#pragma unroll
        for (int n = 0; n < EACH; ++n) squares = fmaf(kept[n], kept[n], squares);
        const float scale = rsqrtf(block_sum<Threads>(squares) / Width + eps);
#pragma unroll
        for (int n = 0; n < EACH; ++n) {
            const int i = threadIdx.x + n * Threads;
            if (i < Width) put(i, kept[n], to_bf16(kept[n] * scale * factor[n]));
        }
    }
};
