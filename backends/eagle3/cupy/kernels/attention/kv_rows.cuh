// What the formats share whose pages have positions in rows, bfloat16 and E4M3: how a ring is filled, and where its pieces have
// a lane's parts of keys and values; of a tree, where nodes have them.
#pragma once
#include "async_copy.cuh"
#include "kv_ring.cuh"

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

__device__ __forceinline__ const uint4& key_of(const uint4* keys, int wide, int i) {
    return keys[(i * LOADS_WIDE + wide) * 32];
}
__device__ __forceinline__ const uint4& value_of(const uint4* values, int i) { return values[i * 32]; }

#if TREE_ROWS
__device__ __forceinline__ const uint4& node_key(int node, int wide, const Thread& me) {
    return node_keys[node][wide * 4 + me.c];
}

// A piece of values in which each of a lane's positions is a node's, NOBODY's are the cache's.
struct PathValues {
    const uint4* values;
    const int (&nodes)[KEYS];
    const Thread& me;
};
__device__ __forceinline__ PathValues values_of_path(const uint4* values, const int (&nodes)[KEYS], const Thread& me) {
    return {values, nodes, me};
}
__device__ __forceinline__ uint4 value_of(const PathValues& path, int i) {
    const int NUMBER_BITS = 8 * (int)sizeof(Cached);
    uint4 v = path.values[i * 32];
    unsigned* words = &v.x;
#pragma unroll
    for (int e = 0; e < KEYS; ++e) {
        if (path.nodes[e] == NOBODY) continue;
        const unsigned of = reinterpret_cast<const Cached*>(node_values[path.nodes[e]])[i * 8 + path.me.g];
        const int word = e * NUMBER_BITS / 32, shift = e * NUMBER_BITS % 32;
        words[word] = (words[word] & ~((1u << NUMBER_BITS) - 1u << shift)) | of << shift;
    }
    return v;
}
#endif
