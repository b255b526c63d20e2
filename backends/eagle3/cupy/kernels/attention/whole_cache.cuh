// All of a cache, as rows of `attention.cu` look at it. kept_blocks.cuh has the same of a part.
#pragma once
#include "kv_ring.cuh"

// Nothing is left out.
#define POSITION_OF(task, at) (at)
__device__ __forceinline__ void leave_out(Task& task, const AttentionArguments& args) {}
__device__ __forceinline__ int dropped_of(const CombineArguments& args, int slot) { return 0; }

// The lane's cache block of the chunk.
__device__ __forceinline__ int entry_of(const AttentionArguments& args, const int* table, const Task& task, int lane) {
    return table[min(task.chunk * (CHUNK / BLOCK) + min(lane, CHUNK / BLOCK - 1), MAX_BLOCKS - 1)];
}

// KVRing::copy takes all of it.
__device__ __forceinline__ void copy_kept(unsigned to, const Cached* k_pages, const Cached* v_pages, bool values, int key,
                                          const Task& task, const Thread& me) {}
