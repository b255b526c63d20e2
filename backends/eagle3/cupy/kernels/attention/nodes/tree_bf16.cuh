// Nodes of a tree over a cache in bfloat16: their way into shared memory and into the cache.
#pragma once
#include "bf16.cuh"
#include "rope.cuh"
#include "tree_rows.cuh"

// Keys and values of the nodes that the tile's rows look at into shared memory: new ones from qkv, rotated; those of earlier
// launches from the cache. New ones also enter the cache.
__device__ __forceinline__ void load_nodes(const AttentionArguments& args, const Task& task) {
    const int* table = args.block_table + task.slot * MAX_BLOCKS;
    const unsigned long long seen = find_paths(task);
    for (int n = threadIdx.x; n < TREE_ROWS * HALF_DIM; n += THREADS) {
        const int node = n / HALF_DIM, i = n % HALF_DIM, at = task.position + node;
        const bool added = is_added(node), enters = enters_here(task, node);
        if (!enters && !(seen >> node & 1)) continue;
        const long long page = ((long long)table[at / BLOCK] * KV_HEADS + task.kv_head) * BLOCK * HEAD_DIM;
        bf16* keys = args.k_pages + page + at % BLOCK * HEAD_DIM;
        bf16* values = args.v_pages + page + at % BLOCK;
        bf16 key[2] = {}, value[2] = {};
        if (added) {
            const long long row = task.a * APPENDED_ROWS + node - FIRST_NODE;
            const float* key_row = args.qkv + (row * QKV_HEADS + HEADS + task.kv_head) * HEAD_DIM;
            const float* value_row = key_row + KV_HEADS * HEAD_DIM;
            const long long angle = (long long)(task.position + depth_of(task.masks[node])) * HALF_DIM + i;
            const HeadNorm norm(key_row, norm_of_keys(args.head_norms));
            const float2 pair = rotated(norm.of(key_row[i], i), norm.of(key_row[i + HALF_DIM], i + HALF_DIM),
                                        args.cosine[angle], args.sine[angle]);
            key[0] = to_bf16(pair.x), key[1] = to_bf16(pair.y);
            value[0] = to_bf16(value_row[i]), value[1] = to_bf16(value_row[i + HALF_DIM]);
        } else {
            key[0] = keys[i], key[1] = keys[i + HALF_DIM];
            value[0] = values[i * BLOCK], value[1] = values[(i + HALF_DIM) * BLOCK];
        }
        bf16 *own_keys = reinterpret_cast<bf16*>(node_keys[node]), *own_values = reinterpret_cast<bf16*>(node_values[node]);
        own_keys[i] = key[0], own_keys[i + HALF_DIM] = key[1];
        own_values[i] = value[0], own_values[i + HALF_DIM] = value[1];
        if (!enters) continue;
        keys[i] = key[0], keys[i + HALF_DIM] = key[1];
        values[i * BLOCK] = value[0], values[(i + HALF_DIM) * BLOCK] = value[1];
    }
}
