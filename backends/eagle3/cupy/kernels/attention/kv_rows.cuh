// What the formats share whose pages have positions in rows, bfloat16 and E4M3: how a ring is filled, and products of a whole
// key tile by what the format has, its QueryPart, add_keys and add_values. Of a chain, keys and values are operands as they lie
// in the piece; of a tree, tree_products.cuh says where they come from.
#pragma once
#include "async_copy.cuh"
#include "kv_ring.cuh"
#include "mma.cuh"

// There is no outer scale.
__device__ __forceinline__ void find_outer(KVRing& ring) {}
__device__ __forceinline__ void scale_outputs(Softmax& state, const KVRing& ring) {}

__device__ __forceinline__ void KVRing::copy(int stage, bool values, int key, bool paced) const {
    if (KEPT_BLOCKS) return copy_kept(address + LOAD * index(stage), k_pages, v_pages, values, key, task, me);
    const int block = __shfl_sync(FULL_WARP, task.entry, (key - task.chunk * CHUNK) / BLOCK);
    const long long at = ((long long)block * KV_HEADS + task.kv_head) * BLOCK * HEAD_DIM;
    const unsigned to = address + LOAD * index(stage);
    if (values) {
        const Cached* from = v_pages + at + key % BLOCK + me.g * BLOCK + LOADED * me.c;
#pragma unroll
        for (int n = 0; n < LOADS_8; ++n) {
            copy_async(to + LOAD * (n * 32), from + n * 8 * BLOCK);
            pace(paced, n);
        }
    } else {
        copy_scales(*this, stage, block, key);
        const Cached* from = k_pages + at + (key % BLOCK + LOADED * (me.g / 2) + me.g % 2) * HEAD_DIM + LOADED * me.c;
#pragma unroll
        for (int n = 0; n < TILE_KEYS / 8; ++n)
#pragma unroll
            for (int wide = 0; wide < LOADS_WIDE; ++wide) {
                copy_async(to + LOAD * ((n * LOADS_WIDE + wide) * 32), from + 2 * n * HEAD_DIM + wide * 4 * LOADED);
                pace(paced, n * LOADS_WIDE + wide);
            }
    }
}

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
