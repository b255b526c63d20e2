// The sums of a cluster's blocks that share k, added up in order, and what is read for the epilogue before that.
//
// The includer has `SharedSums`, and STORED of these in each block.
#pragma once
#include "cluster.cuh"
#include "matmul_epilogue.cuh"
#include "prefetch.cuh"

// An element's total over the chains of all blocks of the cluster, in their order.
__device__ __forceinline__ Total add_chains(const SharedSums shared, int tile, int element) {
    Total total = {0, 0};
#pragma unroll
    for (int r = 0; r < CLUSTER; ++r) {
        const SharedSums of_block = of_rank(shared, r);
#pragma unroll
        for (int n = 0; n < (r == 0 ? 1 : STORED); ++n) {
            total.value += of_block[n][tile][element];
            if (EPILOGUE == SWIGLU) total.up += of_block[n][tile][element + 64];
        }
    }
    return total;
}

__device__ __forceinline__ Early load_early(const MatmulArguments& args, const Cell& cell) {
    Early early = {0, 0, 0};
    if (!cell.exists) return early;
    if (EPILOGUE == RESIDUAL) early.residual = static_cast<const float*>(args.out)[cell.index];
    if (FEEDS_NORM) early.norm_weight = to_float(args.norm_weight[cell.column]);
    if (HAS_BIAS) early.bias = to_float(args.bias[cell.column]);
    return early;
}

// Weights of norms and biases come from memory, once per step, and are needed last: they are brought into the L2 cache early.
__device__ __forceinline__ void prefetch_columns(bool used, const bf16* of_columns, int group) {
    const int EACH_LINE = 32, column = group * COLUMNS + threadIdx.x * EACH_LINE;
    if (used && threadIdx.x <= COLUMNS / EACH_LINE && column < N_OUT) prefetch_line(of_columns + column);
}
