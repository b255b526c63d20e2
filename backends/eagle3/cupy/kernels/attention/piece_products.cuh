// Products of a key tile by what the format of the cache has: QueryPart, add_keys, add_values, and key_of and value_of, a
// lane's parts of a piece. Of a chain, keys and values are operands as they lie in the piece; of a tree, tree_products.cuh says
// where they come from.
#pragma once
#include "kv_ring.cuh"

// score += q · kᵀ for a key tile, whose piece is `keys`.
template <typename Keys>
__device__ __forceinline__ void multiply_piece_keys(float (&score)[TILES][4], const Keys& keys, const Thread& me) {
#pragma unroll
    for (int wide = 0; wide < LOADS_WIDE; ++wide) {
        const QueryPart q(wide, me.lane);
#pragma unroll
        for (int i = 0; i < TILES; ++i) add_keys(score[i], q, key_of(keys, wide, i));
    }
}

// out += p · v for a key tile, whose piece is `values`; `Powers`: of a key tile, as the format has them.
template <typename Powers, typename Values>
__device__ __forceinline__ void multiply_piece_values(float (&out)[LOADS_8][4], const Powers& p, const Values& values) {
#pragma unroll
    for (int i = 0; i < LOADS_8; ++i) add_values(out[i], p, value_of(values, i));
}

#if TREE_ROWS
#include "tree_products.cuh"
#else
template <typename Keys>
__device__ __forceinline__ void multiply_tile_keys(float (&score)[TILES][4], const Keys& keys, int key, const Task& task,
                                                   const Thread& me) {
    multiply_piece_keys(score, keys, me);
}

template <typename Powers, typename Values>
__device__ __forceinline__ void multiply_tile_values(float (&out)[LOADS_8][4], const Powers& p, const Values& values, int key,
                                                     const Task& task, const Thread& me) {
    multiply_piece_values(out, p, values);
}
#endif
