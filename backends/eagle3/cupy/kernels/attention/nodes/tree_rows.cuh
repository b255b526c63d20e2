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
//
// What depends on the cache's format, how nodes enter shared memory and the cache, is in tree_bf16.cuh and, of codes, in
// tree_codes.cuh with tree_fp8.cuh or tree_nvfp4.cuh; what does not in tree_products.cuh, how a key tile is multiplied.
#pragma once
#include "bf16.cuh"
#include "block.cuh"
#include "kv_ring.cuh"

static_assert(TREE_ROWS <= 64 && TREE_STRIDE >= TREE_ROWS, "TREE_ROWS must be at most 64: a mask has 64 bits");
static_assert(FIRST_NODE + QUERY_ROWS == TREE_ROWS && APPENDED_ROWS == QUERY_ROWS, "a launch's rows are the newest nodes");

const int NODES_PER_TILE = 16 % HEADS_PER_KV ? (14 + HEADS_PER_KV) / HEADS_PER_KV + 1 : 16 / HEADS_PER_KV;  // at most
const int NODE_LOADS = HEAD_DIM / LOADED + 1;  // 16-byte loads of a node's row; one more, so that rows begin in other banks
const int NOBODY = -1;

__shared__ uint4 node_keys[TREE_ROWS][NODE_LOADS], node_values[TREE_ROWS][NODE_LOADS];
__shared__ int paths[NODES_PER_TILE][TREE_LEVELS + 1];  // the nodes that each of the tile's nodes looks at

#define LAUNCH_BOUNDS THREADS, 1  // threads of a block, and the registers that they may have: all
const int ROW_POSITIONS = TREE_LEVELS + 1;

__device__ __forceinline__ const long long* masks_of(const AttentionArguments& args, int slot) {
    return args.masks + slot * TREE_STRIDE;
}

// The depth of a node with this mask, of row t of a task, and of row t of the slot at place a of the list.
__device__ __forceinline__ int depth_of(long long mask) { return __popcll(mask) - 1; }
#define DEPTH_OF(task, t) depth_of(task.masks[FIRST_NODE + (t)])
__device__ __forceinline__ int depth_of_row(const CombineArguments& args, bool idle, int a, int t) {
    return idle ? 0 : depth_of(args.masks[args.active[a] * TREE_STRIDE + FIRST_NODE + t]);
}

// The row of the tile's first query, and that of query `index` of the tile counted from there.
__device__ __forceinline__ int first_row_of(const Task& task) { return task.tile * 16 / HEADS_PER_KV; }
__device__ __forceinline__ int own_node(const Task& task, int index) {
    return (task.tile * 16 + index) / HEADS_PER_KV - first_row_of(task);
}

// Whether a node stands at one of the positions of the key tile at `key`.
__device__ __forceinline__ bool holds_nodes(const Task& task, int key) { return key + TILE_KEYS > task.position; }

// ---- load -------------------------------------------------------------------------------------------------------------

// The nodes that the tile's rows look at, as a mask; their paths go to shared memory.
__device__ __forceinline__ unsigned long long find_paths(const Task& task) {
    const int first = FIRST_NODE + first_row_of(task), count = min(NODES_PER_TILE, TREE_ROWS - first);
    unsigned long long seen = 0;  // by any row of the tile
    for (int n = 0; n < count; ++n) seen |= (unsigned long long)task.masks[first + n];
    if (threadIdx.x < NODES_PER_TILE) {
        unsigned long long left = (int)threadIdx.x < count ? (unsigned long long)task.masks[first + threadIdx.x] : 0;
        left &= ~0ull >> (64 - TREE_ROWS);
        for (int depth = 0; depth <= TREE_LEVELS; ++depth, left &= left - 1)
            paths[threadIdx.x][depth] = left ? __ffsll((long long)left) - 1 : NOBODY;
    }
    return seen;
}

// Whether a node is of this launch; whether it enters the cache here: by the blocks of the first chunk that nodes stand in.
__device__ __forceinline__ bool is_added(int node) { return node >= FIRST_NODE; }
__device__ __forceinline__ bool enters_here(const Task& task, int node) {
    return is_added(node) && task.chunk == task.position / CHUNK && (node - FIRST_NODE) % QUERY_TILES == task.tile;
}

// Positions before this one are of earlier steps: what is not is not read from the cache.
__device__ __forceinline__ int known_before(const Task& task) { return task.end + TILE_KEYS - 1; }

// ---- multiply ---------------------------------------------------------------------------------------------------------

// The node that the tile's node `own` sees `behind` positions behind the slot's first; NOBODY where it is none: then what the
// cache holds is taken, which is either an earlier position or hidden from the row.
__device__ __forceinline__ int node_at(int own, int behind) {
    return behind < 0 || behind > TREE_LEVELS ? NOBODY : paths[own][behind];
}
