// Which positions of a cache a partial verification reads, and their way into the ring of `attention.cu`.
//
// A text is cut into blocks of KEPT_BLOCKS positions. Kept are, in this order: the first SINK_BLOCKS blocks; RETRIEVED_BLOCKS
// blocks of the middle, which `choose_blocks.cu` has listed for each key/value head; and everything behind the middle, which is
// as long as `dropped` positions beside the retrieved ones. So from there on a position among those that are kept is the
// position in the text less `dropped`. Keys and values are read where they lie: a half of a key tile is a block.
//
// Layouts: kept [slot][KV_HEADS][RETRIEVED_BLOCKS]; dropped [slot].
#pragma once
#include "async_copy.cuh"
#include "bf16.cuh"
#include "block.cuh"
#include "mma.cuh"

static_assert(KEPT_BLOCKS == 16, "a half of a key tile is a block that is kept");
static_assert(!KV_FP8 && !KV_NVFP4 && !TREE_ROWS && !WINDOW, "a part is read of a plain cache in bfloat16, by chains");
static_assert(CHUNK / KEPT_BLOCKS <= 32, "CHUNK must be at most 32 kept blocks: a lane holds one entry of the table");

const int KEPT_OF_BLOCK = BLOCK / KEPT_BLOCKS;

// The position in the slot's text of what stands at `at` among the positions that are kept, from the window on.
#define POSITION_OF(task, at) ((at) + (task).dropped)
__device__ __forceinline__ void leave_out(Task& task, const AttentionArguments& args) {
    task.dropped = args.dropped[task.slot];
    task.position -= task.dropped, task.last -= task.dropped;
}
__device__ __forceinline__ int dropped_of(const CombineArguments& args, int slot) { return args.dropped[slot]; }

// The lane's block of the chunk, by its place in the cache: its cache block's number times KEPT_OF_BLOCK, and its place there.
__device__ __forceinline__ int kept_entry(const int* table, const int* kept, const Task& task, int lane) {
    const int number = task.chunk * (CHUNK / KEPT_BLOCKS) + min(lane, CHUNK / KEPT_BLOCKS - 1);
    int block = number < SINK_BLOCKS ? number : number + task.dropped / KEPT_BLOCKS;
    if (number >= SINK_BLOCKS && number < SINK_BLOCKS + RETRIEVED_BLOCKS) block = kept[number - SINK_BLOCKS];
    return table[min(block / KEPT_OF_BLOCK, MAX_BLOCKS - 1)] * KEPT_OF_BLOCK + block % KEPT_OF_BLOCK;
}

__device__ __forceinline__ int entry_of(const AttentionArguments& args, const int* table, const Task& task, int lane) {
    return kept_entry(table, args.kept + (task.slot * KV_HEADS + task.kv_head) * RETRIEVED_BLOCKS, task, lane);
}

// Request the keys or values of the key tile at `key`, as KVRing::copy does, without a pace. The eight positions that a lane
// has part in lie in one block.
__device__ __forceinline__ void copy_kept(unsigned to, const bf16* k_pages, const bf16* v_pages, bool values, int key,
                                          const Task& task, const Thread& me) {
    const int eight = values ? me.c : me.g / 2;
    const int entry = __shfl_sync(FULL_WARP, task.entry, (key - task.chunk * CHUNK) / KEPT_BLOCKS + eight / 2);
    const long long at = ((long long)(entry / KEPT_OF_BLOCK) * KV_HEADS + task.kv_head) * BLOCK * HEAD_DIM;
    const int within = entry % KEPT_OF_BLOCK * KEPT_BLOCKS + eight % 2 * 8;
    if (values) {
        const bf16* from = v_pages + at + within + me.g * BLOCK;
#pragma unroll
        for (int n = 0; n < HEAD_DIM / 8; ++n) copy_async(to + LOAD * (n * 32), from + n * 8 * BLOCK);
    } else {
        const bf16* from = k_pages + at + (within + me.g % 2) * HEAD_DIM + 8 * me.c;
#pragma unroll
        for (int n = 0; n < 4; ++n)
#pragma unroll
            for (int wide = 0; wide < HEAD_DIM / 32; ++wide)
                copy_async(to + LOAD * ((n * (HEAD_DIM / 32) + wide) * 32), from + 2 * n * HEAD_DIM + wide * 32);
    }
}
