// Rows of `attention.cu` that are nodes of a tree.
//
// Node n of a slot has the 64-bit mask masks[slot][n]: bit m is set where n looks at node m, which is n itself or above it. A
// node stands `depth` positions behind the slot's first, its depth being the number of nodes above it; so the d-th bit that is
// set is the node that it sees d positions behind. TREE_ROWS nodes are known, the last QUERY_ROWS of which, from FIRST_NODE on,
// are this launch's rows; none is deeper than TREE_LEVELS. Node n is kept in the cache behind the slot's first position, n rows
// behind it, until the accepted path is moved to where it stands (tree_settle.cu).
//
// A row must see the keys and values of its path at the positions that they would have in a chain: sums of other places have
// other bits. So for key tiles that hold such positions, a block builds the tensor core's operands once for every node whose
// queries its tile has, with the keys and values of that node's own path in their places, and keeps the rows of that node.
// They are at most two of a chunk's tiles. Everything else is the chain's, key tile by key tile.
#pragma once
#include "bf16.cuh"
#include "block.cuh"
#include "mma.cuh"

static_assert(TREE_ROWS <= 64 && TREE_STRIDE >= TREE_ROWS, "TREE_ROWS must be at most 64: a mask has 64 bits");
static_assert(FIRST_NODE + QUERY_ROWS == TREE_ROWS && APPENDED_ROWS == QUERY_ROWS, "a launch's rows are the newest nodes");
static_assert(!SINKS, "attention of trees has no sinks");
static_assert(!KV_FP8, "a tree's rows are cached before their positions, and with them their scales, are known");

const int NODES_PER_TILE = 16 % HEADS_PER_KV ? (14 + HEADS_PER_KV) / HEADS_PER_KV + 1 : 16 / HEADS_PER_KV;  // at most
const int NODE_LOADS = HEAD_DIM / 8 + 1;  // 16-byte loads of a node's row; one more, so that rows begin in other banks
const int NOBODY = -1;

__shared__ uint4 node_keys[TREE_ROWS][NODE_LOADS], node_values[TREE_ROWS][NODE_LOADS];
__shared__ int paths[NODES_PER_TILE][TREE_LEVELS + 1];  // the nodes that each of the tile's nodes looks at

__device__ __forceinline__ int depth_of(long long mask) { return __popcll(mask) - 1; }
#define DEPTH_OF(task, t) depth_of(task.masks[FIRST_NODE + (t)])

// The row of the tile's first query, and that of query `index` of the tile counted from there.
__device__ __forceinline__ int first_row_of(const Task& task) { return task.tile * 16 / HEADS_PER_KV; }
__device__ __forceinline__ int own_node(const Task& task, int index) {
    return (task.tile * 16 + index) / HEADS_PER_KV - first_row_of(task);
}

// Whether a node stands at one of the positions of the key tile at `key`.
__device__ __forceinline__ bool holds_nodes(const Task& task, int key) { return key + 32 > task.position; }

// ---- load -------------------------------------------------------------------------------------------------------------

// Keys and values of the nodes that the tile's rows look at into shared memory: new ones from qkv, rotated; those of earlier
// launches from the cache. New ones also enter the cache, by the blocks of the first chunk that nodes stand in.
__device__ __forceinline__ void load_nodes(const AttentionArguments& args, const Task& task) {
    const int* table = args.block_table + task.slot * MAX_BLOCKS;
    const int first = FIRST_NODE + first_row_of(task), count = min(NODES_PER_TILE, TREE_ROWS - first);
    unsigned long long seen = 0;  // by any row of the tile
    for (int n = 0; n < count; ++n) seen |= (unsigned long long)task.masks[first + n];
    if (threadIdx.x < NODES_PER_TILE) {
        unsigned long long left = (int)threadIdx.x < count ? (unsigned long long)task.masks[first + threadIdx.x] : 0;
        left &= ~0ull >> (64 - TREE_ROWS);
        for (int depth = 0; depth <= TREE_LEVELS; ++depth, left &= left - 1)
            paths[threadIdx.x][depth] = left ? __ffsll((long long)left) - 1 : NOBODY;
    }
    for (int n = threadIdx.x; n < TREE_ROWS * HALF_DIM; n += THREADS) {
        const int node = n / HALF_DIM, i = n % HALF_DIM, at = task.position + node;
        const bool added = node >= FIRST_NODE,
                   enters = added && task.chunk == task.position / CHUNK && (node - FIRST_NODE) % QUERY_TILES == task.tile;
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
            const float2 pair = rotated(key_row[i], key_row[i + HALF_DIM], args.cosine[angle], args.sine[angle]);
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

// ---- multiply ---------------------------------------------------------------------------------------------------------

// The node that the tile's node `own` sees `behind` positions behind the slot's first; NOBODY where it is none: then what the
// cache holds is taken, which is either an earlier position or hidden from the row.
__device__ __forceinline__ int node_at(int own, int behind) {
    return behind < 0 || behind > TREE_LEVELS ? NOBODY : paths[own][behind];
}

// score = q · kᵀ for the key tile at `key`, whose piece is `keys`.
__device__ __forceinline__ void multiply_node_keys(float (&score)[4][4], const uint4* keys, int key, const Task& task,
                                                   const Thread& me) {
#pragma unroll 1
    for (int own = 0; own < NODES_PER_TILE; ++own) {
        float sums[4][4] = {};
        int nodes[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) nodes[i] = node_at(own, key + 8 * (me.g / 2) + 2 * i + me.g % 2 - task.position);
#pragma unroll
        for (int wide = 0; wide < LOADS_32; ++wide) {
            const uint4 lower = queries[wide][0][me.lane], upper = queries[wide][1][me.lane];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const uint4 k = nodes[i] == NOBODY ? keys[(i * LOADS_32 + wide) * 32] : node_keys[nodes[i]][wide * 4 + me.c];
                mma_bf16(sums[i], lower.x, lower.y, lower.z, lower.w, k.x, k.y);
                mma_bf16(sums[i], upper.x, upper.y, upper.z, upper.w, k.z, k.w);
            }
        }
#pragma unroll
        for (int half = 0; half < HALVES; ++half)
            if (own_node(task, me.g + 8 * half) == own)
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    score[i][2 * half] = sums[i][2 * half];
                    score[i][2 * half + 1] = sums[i][2 * half + 1];
                }
    }
}

// out += p · v for the key tile at `key`, whose piece is `values`.
__device__ __forceinline__ void multiply_node_values(float (&out)[LOADS_8][4], const unsigned (&p)[8], const uint4* values,
                                                     int key, const Task& task, const Thread& me) {
#pragma unroll 1
    for (int own = 0; own < NODES_PER_TILE; ++own) {
        int nodes[8];
#pragma unroll
        for (int e = 0; e < 8; ++e) nodes[e] = node_at(own, key + 8 * me.c + e - task.position);
#pragma unroll
        for (int i = 0; i < LOADS_8; ++i) {
            uint4 v = values[i * 32];
            unsigned* words = &v.x;
#pragma unroll
            for (int e = 0; e < 8; ++e)
                if (nodes[e] != NOBODY) {
                    const unsigned of = reinterpret_cast<const bf16*>(node_values[nodes[e]])[i * 8 + me.g];
                    words[e / 2] = e % 2 ? (words[e / 2] & 0xffffu) | of << 16 : (words[e / 2] & 0xffff0000u) | of;
                }
            float sums[4] = {out[i][0], out[i][1], out[i][2], out[i][3]};
            mma_bf16(sums, p[0], p[1], p[2], p[3], v.x, v.y);
            mma_bf16(sums, p[4], p[5], p[6], p[7], v.z, v.w);
#pragma unroll
            for (int half = 0; half < HALVES; ++half)
                if (own_node(task, me.g + 8 * half) == own) {
                    out[i][2 * half] = sums[2 * half];
                    out[i][2 * half + 1] = sums[2 * half + 1];
                }
        }
    }
}
