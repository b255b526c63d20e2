// How well the newest queries of a slot may like each block of the middle, for each layer and key/value head: the mean, over
// QUERY_ROWS rows and the heads that share the key/value head, of max(q · largest, q · smallest).
//
// A warp scores eight blocks: their bounds are the columns of operand B of the tensor core, and sixteen queries the rows of A.
//
// Layouts: scores [layer][slots][KV_HEADS][STRIDE]; asked [layer][SLOTS][ASKED_ROWS][HEADS][HEAD_DIM]; bounds as in
// block_bounds.cu.
#include "bf16.cuh"
#include "block.cuh"
#include "dependent.cuh"
#include "middle.cuh"
#include "mma.cuh"

const int HEADS_PER_KV = HEADS / KV_HEADS, QUERIES = HEADS_PER_KV * QUERY_ROWS, QUERY_TILES = (QUERIES + 15) / 16;
const int LOADS_32 = HEAD_DIM / 32;

struct BlockScoresArguments {  // launched on [(STRIDE - 1) / (8 * WARPS) + 1, KV_HEADS, LAYERS * S] with 32 * WARPS threads
    float* scores;             // [LAYERS * S, KV_HEADS, STRIDE]
    const bf16* bounds;        // [LAYERS, BLOCKS, KV_HEADS, BLOCK / KEPT, 2, HEAD_DIM]
    const bf16* asked;         // [LAYERS, SLOTS, ASKED_ROWS, HEADS, HEAD_DIM]
    const int *block_table, *length, *active, *active_count;  // [S, MAX_BLOCKS], [S], [S], [1]
    int slots;
};

// Eight neighbouring elements of query `index` of the head, at `from`; zeros where there is none.
__device__ __forceinline__ uint4 query(const bf16* asked, int kv_head, int index, int from) {
    if (index >= QUERIES) return make_uint4(0, 0, 0, 0);
    const int head = kv_head * HEADS_PER_KV + index % HEADS_PER_KV;
    return *reinterpret_cast<const uint4*>(asked + (index / HEADS_PER_KV * HEADS + head) * HEAD_DIM + from);
}

extern "C" __global__ __launch_bounds__(WARPS * 32, 4) void block_scores(const BlockScoresArguments args) {
    const Thread me;
    const int layer = blockIdx.z / args.slots, a = blockIdx.z % args.slots, kv_head = blockIdx.y;
    const int from = (blockIdx.x * WARPS + me.warp) * 8;
    await_previous();
    let_next_start();
    if (a >= *args.active_count) return;
    const int slot = args.active[a], end = end_of_middle(args.length[slot]);
    if (from >= end || from + 8 <= SINK_BLOCKS) return;
    const int number = min(from + me.g, end - 1);
    const int cached = args.block_table[slot * MAX_BLOCKS + number / KEPT_OF_BLOCK];
    const long long page = ((long long)layer * BLOCKS + cached) * KV_HEADS + kv_head;
    const bf16* bounds = args.bounds + (page * KEPT_OF_BLOCK + number % KEPT_OF_BLOCK) * 2 * HEAD_DIM + 8 * me.c;
    uint4 largest[LOADS_32], smallest[LOADS_32];
#pragma unroll
    for (int wide = 0; wide < LOADS_32; ++wide) {
        largest[wide] = *reinterpret_cast<const uint4*>(bounds + wide * 32);
        smallest[wide] = *reinterpret_cast<const uint4*>(bounds + HEAD_DIM + wide * 32);
    }
    const bf16* asked = args.asked + ((long long)layer * SLOTS + slot) * ASKED_ROWS * HEADS * HEAD_DIM;
    float sum[2] = {};  // of blocks 2c and 2c + 1, over rows g and g + 8 of all tiles
#pragma unroll 1
    for (int tile = 0; tile < QUERY_TILES; ++tile) {
        float high[4] = {}, low[4] = {};
#pragma unroll
        for (int wide = 0; wide < LOADS_32; ++wide) {
            const uint4 upper = query(asked, kv_head, tile * 16 + me.g, wide * 32 + 8 * me.c);
            const uint4 lower = query(asked, kv_head, tile * 16 + me.g + 8, wide * 32 + 8 * me.c);
            mma_k32(high, upper, lower, largest[wide]);
            mma_k32(low, upper, lower, smallest[wide]);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[i % 2] += fmaxf(high[i], low[i]);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int step = 4; step < 32; step *= 2) sum[i] += __shfl_xor_sync(FULL_WARP, sum[i], step);
        const int block = from + 2 * me.c + i;
        if (me.g == 0 && block < end)
            args.scores[((long long)blockIdx.z * KV_HEADS + kv_head) * STRIDE + block] = sum[i] / QUERIES;
    }
}
