// Rows of `attention.cu` that are a chain: each stands a position behind the one before it. tree_rows.cuh has the same of
// nodes.
#pragma once
#include "kv_ring.cuh"

#define LAUNCH_BOUNDS THREADS  // of a block
const int ROW_POSITIONS = QUERY_ROWS;

__device__ __forceinline__ const long long* masks_of(const AttentionArguments& args, int slot) { return nullptr; }
#define DEPTH_OF(task, t) t
__device__ __forceinline__ int depth_of_row(const CombineArguments& args, bool idle, int a, int t) { return t; }

// Positions before this one are of earlier steps.
__device__ __forceinline__ int known_before(const Task& task) { return min(task.oldest_new, (task.chunk + 1) * CHUNK); }

// There are none.
__device__ __forceinline__ void load_nodes(const AttentionArguments& args, const Task& task) {}
