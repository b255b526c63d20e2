// The largest and the smallest of every element of the keys of a block of KEPT positions, for each layer and key/value head:
// bounds[...][0] and [1]. Of each slot, those blocks are taken that have come to lie before the window since it had `bounded`
// of them: from then on no step writes their keys.
//
// One block of threads per block of positions, head, layer and slot; a thread per element.
//
// Layouts: k_pages [layer][cache block][KV_HEADS][BLOCK][HEAD_DIM]; bounds [layer][cache block][KV_HEADS][BLOCK /
// KEPT][largest, smallest][HEAD_DIM].
#include "bf16.cuh"
#include "dependent.cuh"
#include "middle.cuh"

struct BlockBoundsArguments {  // launched on [MOST, KV_HEADS, LAYERS * S] with HEAD_DIM threads
    bf16* bounds;              // [LAYERS, BLOCKS, KV_HEADS, BLOCK / KEPT, 2, HEAD_DIM]
    const bf16* k_pages;       // [LAYERS, BLOCKS, KV_HEADS, BLOCK, HEAD_DIM]
    const int *block_table, *bounded, *length, *active, *active_count;  // [S, MAX_BLOCKS], [S], [S], [S], [1]
    int slots;
};

extern "C" __global__ __launch_bounds__(HEAD_DIM) void block_bounds(const BlockBoundsArguments args) {
    const int layer = blockIdx.z / args.slots, a = blockIdx.z % args.slots, kv_head = blockIdx.y, d = threadIdx.x;
    await_previous();
    let_next_start();
    if (a >= *args.active_count) return;
    const int slot = args.active[a], number = args.bounded[slot] + blockIdx.x;
    if (number >= end_of_middle(args.length[slot])) return;
    const int cached = args.block_table[slot * MAX_BLOCKS + number / KEPT_OF_BLOCK], within = number % KEPT_OF_BLOCK;
    const long long page = ((long long)layer * BLOCKS + cached) * KV_HEADS + kv_head;
    const bf16* keys = args.k_pages + (page * BLOCK + within * KEPT) * HEAD_DIM + d;
    float largest = to_float(keys[0]), smallest = largest;
#pragma unroll
    for (int i = 1; i < KEPT; ++i) {
        const float key = to_float(keys[i * HEAD_DIM]);
        largest = fmaxf(largest, key), smallest = fminf(smallest, key);
    }
    bf16* to = args.bounds + (page * KEPT_OF_BLOCK + within) * 2 * HEAD_DIM + d;
    to[0] = to_bf16(largest), to[HEAD_DIM] = to_bf16(smallest);
}
