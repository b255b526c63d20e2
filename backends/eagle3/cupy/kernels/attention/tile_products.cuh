// Products of a whole key tile by what the cache's format has: its QueryPart, add_keys and add_values. Of a chain, keys and
// values are operands as they lie in the piece; of a tree, tree_products.cuh says where they come from.
#pragma once
#include "kv_ring.cuh"

// score += q · kᵀ for a key tile, whose piece is `keys`.
__device__ __forceinline__ void multiply_piece_keys(float (&score)[TILES][4], const uint4* keys, const Thread& me) {
#pragma unroll
    for (int wide = 0; wide < LOADS_WIDE; ++wide) {
        const QueryPart q(wide, me.lane);
#pragma unroll
        for (int i = 0; i < TILES; ++i) add_keys(score[i], q, keys[(i * LOADS_WIDE + wide) * 32]);
    }
}

// out += p · v for a key tile, whose piece is `values`; `Powers`: of a key tile, as the format has them.
template <typename Powers>
__device__ __forceinline__ void multiply_piece_values(float (&out)[LOADS_8][4], const Powers& p, const uint4* values) {
#pragma unroll
    for (int i = 0; i < LOADS_8; ++i) add_values(out[i], p, values[i * 32]);
}

#if TREE_ROWS
#include "tree_products.cuh"
#else
__device__ __forceinline__ void multiply_tile_keys(float (&score)[TILES][4], const uint4* keys, int key, const Task& task,
                                                   const Thread& me) {
    multiply_piece_keys(score, keys, me);
}

template <typename Powers>
__device__ __forceinline__ void multiply_tile_values(float (&out)[LOADS_8][4], const Powers& p, const uint4* values, int key,
                                                     const Task& task, const Thread& me) {
    multiply_piece_values(out, p, values);
}
#endif
