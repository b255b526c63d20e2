// The division of the norm before a product, per row. Part of `matmul_rows.cu` and `matmul_many.cu`, which have K_IN, WARPS and
// ROW_TILES.
#pragma once
#include "block.cuh"
#include "matmul_arguments.cuh"
#include "mma.cuh"

// One warp per row, and the same order of additions in every configuration.
__device__ __forceinline__ void compute_rms_factors(const float* squares, int rows, float eps, const Thread& me) {
    const int SQUARES = K_IN / 8, EACH = (SQUARES / 4 + 31) / 32;  // sums of a row, and how many fours of them a lane adds up
    const int AT_ONCE = ROW_TILES * 8 > WARPS ? 2 : 1;             // rows that a warp requests together
#pragma unroll 1
    for (int row = me.warp; row < rows; row += WARPS * AT_ONCE) {
        float4 four[AT_ONCE][EACH];
#pragma unroll
        for (int n = 0; n < AT_ONCE; ++n) {
            const float4* of = reinterpret_cast<const float4*>(squares + (row + n * WARPS) * SQUARES);
#pragma unroll
            for (int e = 0; e < EACH; ++e) {
                const bool exists = row + n * WARPS < rows && me.lane + 32 * e < SQUARES / 4;
                four[n][e] = exists ? of[me.lane + 32 * e] : float4{};
            }
        }
#pragma unroll
        for (int n = 0; n < AT_ONCE; ++n) {
            float sum = 0;
#pragma unroll
            for (int e = 0; e < EACH; ++e) sum += (four[n][e].x + four[n][e].y) + (four[n][e].z + four[n][e].w);
            sum = warp_sum(sum);
            if (me.lane == 0 && row + n * WARPS < rows) rms_factor[row + n * WARPS] = rsqrtf(sum / K_IN + eps);
        }
    }
}
