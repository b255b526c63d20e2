// Nodes of a tree over a cache in E4M3, and the scales of their codes.
//
// SCALE_POSITIONS positions share a scale, which the first of them makes. Of the positions behind the slot's first at most one
// begins such positions; so a path has two scales: that of the cache, and that which its node there makes, if it reaches so
// far. Codes enter the cache as nodes do; the scale of the second kind goes to node_scales
// [slot][KV_HEADS][TREE_STRIDE][key, value], where later launches find it, and tree_settle.cu that of the accepted path.
#pragma once
#include "fp8.cuh"
#include "kv_ring.cuh"
#include "tree_rows.cuh"

static_assert(TREE_LEVELS < SCALE_POSITIONS, "a path must not begin the positions of two scales");

__shared__ float2 own_scales[NODES_PER_TILE];  // of the path of each of the tile's nodes, from where it begins a scale

// How many positions behind the slot's first one begins a scale's positions.
__device__ __forceinline__ int scale_depth(const Task& task) { return -task.position & (SCALE_POSITIONS - 1); }

// The node of a path, given as a mask, at that depth; NOBODY where the path ends before.
__device__ __forceinline__ int scale_node(const Task& task, unsigned long long mask) {
    mask &= ~0ull >> (64 - TREE_ROWS);
    for (int above = scale_depth(task); above > 0; --above) mask &= mask - 1;
    return mask ? __ffsll((long long)mask) - 1 : NOBODY;
}

// Where the scale that a node's path makes for keys lies, before that for values.
__device__ __forceinline__ int node_scale(const Task& task, int node) {
    return 2 * ((task.slot * KV_HEADS + task.kv_head) * TREE_STRIDE + node);
}

// The scale of the codes of `row`, the key or value of node `node`. Says also whether its path makes one.
__device__ __forceinline__ float scale_of_node(const AttentionArguments& args, const Task& task, const NewRow& row, int node,
                                               bool values, int lane, bool& made) {
    const int maker = scale_node(task, task.masks[node]);
    made = maker != NOBODY;
    const int block = args.block_table[task.slot * MAX_BLOCKS + task.position / BLOCK];
    if (!made) return args.scales[scale_place(block, task.kv_head, task.position) + values];
    if (!is_added(maker)) return args.node_scales[node_scale(task, maker) + values];
    return scale_of((maker == node ? row : NewRow(args, task, maker - FIRST_NODE, values, lane)).largest());
}

// In the cache, element i is at `cached` + i · `stride`.
struct NodeRow {
    const int node;
    const bool values;
    unsigned char *cached, *own;
    int stride;

    __device__ __forceinline__ NodeRow(const AttentionArguments& args, const Task& task, int node, bool values, int block,
                                       int place)
        : node(node), values(values) {
        const long long page = ((long long)block * KV_HEADS + task.kv_head) * BLOCK * HEAD_DIM;
        cached = values ? args.v_pages + page + place : args.k_pages + page + place * HEAD_DIM;
        own = reinterpret_cast<unsigned char*>(values ? node_values[node] : node_keys[node]);
        stride = values ? BLOCK : 1;
    }

    __device__ __forceinline__ void make(const AttentionArguments& args, const Task& task, bool enters, int lane) const {
        const NewRow row(args, task, node - FIRST_NODE, values, lane);
        bool made;
        const float scale = scale_of_node(args, task, row, node, values, lane, made), factor = inverse(scale);
        const int first = FIRST_NODE + first_row_of(task);
        if (lane == 0 && made) {
            if (enters) args.node_scales[node_scale(task, node) + values] = scale;
            if (node >= first && node < first + NODES_PER_TILE) (&own_scales[node - first].x)[values] = scale;
        }
#pragma unroll
        for (int m = 0; m < EACH; ++m) {
            const unsigned char codes[2] = {fp8_code(row.pairs[m].x * factor), fp8_code(row.pairs[m].y * factor)};
#pragma unroll
            for (int part = 0; part < 2; ++part) {
                const int i = lane + 32 * m + HALF_DIM * part;
                own[i] = codes[part];
                if (enters) cached[i * stride] = codes[part];
            }
        }
    }

    __device__ __forceinline__ void fetch(int lane) const {
        for (int i = lane; i < HEAD_DIM; i += 32) own[i] = cached[i * stride];
    }
};

// The scales of a lane's keys and values of the key tile at `key`, as its rows g and g + 8 see them.
__device__ __forceinline__ void find_scales(float2 (&scale)[LANE_SCALES], const KVRing& ring, int key) {
    const Task& task = ring.task;
    const int behind = key + KEYS * ring.me.c - task.position;
    const float2 cached = scales_of_piece(ring);
#pragma unroll
    for (int half = 0; half < LANE_SCALES; ++half) {
        const int own = own_node(task, ring.me.g + 8 * half);
        scale[half] = behind == scale_depth(task) && node_at(own, behind) != NOBODY ? own_scales[own] : cached;
    }
}
