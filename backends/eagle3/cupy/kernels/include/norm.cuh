// RMSNorm of one row by one block: x · weight / sqrt(mean(x²) + eps), in float32, rounded once.
#pragma once
#include "bf16.cuh"
#include "block.cuh"

// It comes in two steps, between which a kernel may do something else: `load` requests the row, `finish` norms it.
//
// `at(i)` gives element i of the row in float32. It is called once per element, before any `put(i, x, normed)`. A thread
// requests all its elements together: one trip to memory for all of them, not one each.
template <int Width, int Threads>
struct NormRow {
    static const int EACH = (Width + Threads - 1) / Threads;
    float values[EACH], weights[EACH];

    template <typename At>
    __device__ __forceinline__ void load(At at, const bf16* weight) {
#pragma unroll
        for (int n = 0; n < EACH; ++n) {
            const int i = threadIdx.x + n * Threads;
            values[n] = i < Width ? at(i) : 0;
            weights[n] = i < Width ? to_float(weight[i]) : 0;
        }
    }

    template <typename Put>
    __device__ __forceinline__ void finish(float eps, Put put) const {
        float squares = 0;
#pragma unroll
        for (int n = 0; n < EACH; ++n) squares = fmaf(values[n], values[n], squares);
        const float scale = rsqrtf(block_sum<Threads>(squares) / Width + eps);
#pragma unroll
        for (int n = 0; n < EACH; ++n) {
            const int i = threadIdx.x + n * Threads;
            if (i < Width) put(i, values[n], to_bf16(values[n] * scale * weights[n]));
        }
    }
};
