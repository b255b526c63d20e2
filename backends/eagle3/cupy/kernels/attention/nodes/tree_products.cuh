// Products of a key tile that nodes of a tree stand in (tree_rows.cuh): once for every node that the query tile has, with the
// keys and values of that node's own path in the places of their positions, as the format has them: its node_key,
// values_of_path.
#pragma once
#include "kv_ring.cuh"
#include "tree_rows.cuh"

// Index of the tile's first node: 0. With a cache of codes the compiler must not know the number: where a slot has one tile, it
// else compiles the turns of the loops below one by one, and a thread has too few registers.
#if KV_FP8 || KV_NVFP4
__device__ __forceinline__ int first_own() {
    int own = 0;
    asm("" : "+r"(own));
    return own;
}
#define FIRST_OWN first_own()
#else
#define FIRST_OWN 0
#endif

// score = q · kᵀ for the key tile at `key`, whose piece is `keys`.
template <typename Keys>
__device__ __forceinline__ void multiply_tile_keys(float (&score)[TILES][4], const Keys& keys, int key, const Task& task,
                                                   const Thread& me) {
    if (!holds_nodes(task, key)) return multiply_piece_keys(score, keys, me);
#pragma unroll 1
    for (int own = FIRST_OWN; own < NODES_PER_TILE; ++own) {
        float sums[TILES][4] = {};
        int nodes[TILES];
#pragma unroll
        for (int i = 0; i < TILES; ++i) nodes[i] = node_at(own, key + KEYS * (me.g / 2) + 2 * i + me.g % 2 - task.position);
#pragma unroll
        for (int wide = 0; wide < LOADS_WIDE; ++wide) {
            const QueryPart q(wide, me.lane);
#pragma unroll
            for (int i = 0; i < TILES; ++i)
                add_keys(sums[i], q, nodes[i] == NOBODY ? key_of(keys, wide, i) : node_key(nodes[i], wide, me));
        }
#pragma unroll
        for (int half = 0; half < HALVES; ++half)
            if (own_node(task, me.g + 8 * half) == own)
#pragma unroll
                for (int i = 0; i < TILES; ++i) {
                    score[i][2 * half] = sums[i][2 * half];
                    score[i][2 * half + 1] = sums[i][2 * half + 1];
                }
    }
}

// out += p · v for the key tile at `key`, whose piece is `values`.
template <typename Powers, typename Values>
__device__ __forceinline__ void multiply_tile_values(float (&out)[LOADS_8][4], const Powers& p, const Values& values, int key,
                                                     const Task& task, const Thread& me) {
    if (!holds_nodes(task, key)) return multiply_piece_values(out, p, values);
#pragma unroll 1
    for (int own = FIRST_OWN; own < NODES_PER_TILE; ++own) {
        int nodes[KEYS];
#pragma unroll
        for (int e = 0; e < KEYS; ++e) nodes[e] = node_at(own, key + KEYS * me.c + e - task.position);
        const auto path = values_of_path(values, nodes, me);
#pragma unroll
        for (int i = 0; i < LOADS_8; ++i) {
            const auto v = value_of(path, i);
            float sums[4] = {out[i][0], out[i][1], out[i][2], out[i][3]};
            add_values(sums, p, v);
#pragma unroll
            for (int half = 0; half < HALVES; ++half)
                if (own_node(task, me.g + 8 * half) == own) {
                    out[i][2 * half] = sums[2 * half];
                    out[i][2 * half + 1] = sums[2 * half + 1];
                }
        }
    }
}
