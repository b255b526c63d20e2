// Nodes of a tree over a cache of codes on their way into shared memory and into the cache. A node's codes and scales are those
// that it has in a chain of its path.
#pragma once
#include "kv_ring.cuh"
#include "tree_rows.cuh"

// The key or the value of a node in the cache and in shared memory, as the format has it (tree_fp8.cuh, tree_nvfp4.cuh).
struct NodeRow;

// Keys and values of the nodes that the tile's rows look at into shared memory, each by one warp: new ones from qkv, rotated;
// those of earlier launches from the cache. New ones also enter the cache. A template, since the format comes later.
template <typename Row = NodeRow>
__device__ __forceinline__ void load_nodes(const AttentionArguments& args, const Task& task) {
    const int* table = args.block_table + task.slot * MAX_BLOCKS;
    const unsigned long long seen = find_paths(task);
    const int lane = threadIdx.x % 32;
    for (int n = threadIdx.x / 32; n < 2 * TREE_ROWS; n += WARPS) {
        const int node = n / 2, at = task.position + node;
        const bool values = n % 2 == 1, enters = enters_here(task, node);
        if (!enters && !(seen >> node & 1)) continue;
        const Row row(args, task, node, values, table[at / BLOCK], at % BLOCK);
        if (!is_added(node)) {
            row.fetch(lane);
            continue;
        }
        row.make(args, task, enters, lane);
    }
}
