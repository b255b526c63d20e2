// Leaves the target's cache as if the accepted path had been decoded alone: what is kept for its nodes goes to the positions
// that they stand at, in all layers. And their captured features go to the first rows, where the draft's extension reads them.
//
// Blocks y = slot; of x the first HEADS_IN_ALL are a layer's key/value head each, the others COLUMNS_AT_ONCE columns of
// features. A thread moves columns of its own. It loads all rows of the path before it stores any, since rows are read and
// written.
//
// Layouts: path [slot][LEVELS + 1]; k_pages [layer][block][KV_HEADS][BLOCK][HEAD_DIM] and v_pages
// [layer][block][KV_HEADS][HEAD_DIM][BLOCK]; features [slot][MAX_ROWS][WIDTH].
#include "bf16.cuh"
#include "dependent.cuh"
#include "slots.cuh"

static_assert(THREADS == HEAD_DIM, "a thread has one element of a head");
static_assert(WIDTH % 8 == 0, "WIDTH must be a multiple of 8");

const int HEADS_IN_ALL = LAYERS * KV_HEADS;
const int COLUMNS_AT_ONCE = THREADS * 8;

struct TreeCompactArguments {
    bf16* k_pages;
    bf16* v_pages;
    bf16* features;
    const int* path;
    const int* accepted;
    const int* length;
    const int* block_table;
    const int* active;
    const int* active_count;
    long long* stamps;
    const int* step;
};

// Which row of the tree is at depth d + 1 of the slot's path; -1 where it need not be moved.
typedef int Path[LEVELS];

__device__ __forceinline__ void move_head(const TreeCompactArguments& args, int slot, const Path& path) {
    const int layer = blockIdx.x / KV_HEADS, head = blockIdx.x % KV_HEADS, i = threadIdx.x, length = args.length[slot];
    const int* table = args.block_table + slot * MAX_BLOCKS;
    auto page = [&](int at) { return (((long long)layer * BLOCKS + table[at / BLOCK]) * KV_HEADS + head) * BLOCK * HEAD_DIM; };
    bf16 keys[LEVELS], values[LEVELS];
#pragma unroll
    for (int d = 0; d < LEVELS; ++d)
        if (path[d] >= 0) {
            const int at = length + path[d];
            keys[d] = args.k_pages[page(at) + at % BLOCK * HEAD_DIM + i];
            values[d] = args.v_pages[page(at) + i * BLOCK + at % BLOCK];
        }
#pragma unroll
    for (int d = 0; d < LEVELS; ++d)
        if (path[d] >= 0) {
            const int at = length + d + 1;
            args.k_pages[page(at) + at % BLOCK * HEAD_DIM + i] = keys[d];
            args.v_pages[page(at) + i * BLOCK + at % BLOCK] = values[d];
        }
}

__device__ __forceinline__ void move_features(const TreeCompactArguments& args, int slot, const Path& path) {
    const int i = ((blockIdx.x - HEADS_IN_ALL) * THREADS + threadIdx.x) * 8;
    if (i >= WIDTH) return;
    bf16* rows = args.features + (long long)slot * MAX_ROWS * WIDTH + i;
    uint4 moved[LEVELS];
#pragma unroll
    for (int d = 0; d < LEVELS; ++d)
        if (path[d] >= 0) moved[d] = *reinterpret_cast<const uint4*>(rows + (long long)path[d] * WIDTH);
#pragma unroll
    for (int d = 0; d < LEVELS; ++d)
        if (path[d] >= 0) *reinterpret_cast<uint4*>(rows + (long long)(d + 1) * WIDTH) = moved[d];
}

extern "C" __global__ __launch_bounds__(THREADS) void tree_compact(const TreeCompactArguments args) {
    await_previous();
    let_next_start();
    const int a = blockIdx.y, count = *args.active_count, slot = args.active[a], now = *args.step;
    if (a >= count) return;
    const int accepted = args.accepted[slot];
    Path path;
#pragma unroll
    for (int d = 0; d < LEVELS; ++d) {
        const int node = d < accepted ? args.path[slot * (LEVELS + 1) + d + 1] : 0;
        path[d] = node > d + 1 && node < MAX_ROWS ? node : -1;
    }
    if (blockIdx.x < HEADS_IN_ALL)
        move_head(args, slot, path);
    else
        move_features(args, slot, path);
    if (blockIdx.x == 0 && a == 0 && threadIdx.x == 0) args.stamps[now * STAMPS + ACCEPTED] = device_nanoseconds();
}
