// Begins a step: give every active slot the cache blocks that ROWS more positions need, and check whom they belong to.
//
// One block, one thread per active slot. Layouts: block_table [slot][MAX_BLOCKS], of which the first held[slot] entries are
// valid; free_blocks is a stack of free_count blocks; owner [block]; stamps [step][STAMPS].
//
// Every block that the step writes must exist, and belong to its slot alone: a block shared between slots, or one that is
// also on the free stack, would silently corrupt another request. A violation stops all slots before anything is written.
#include "dependent.cuh"
#include "kv_blocks.cuh"
#include "slots.cuh"

struct KVReserveArguments {                         // launched on [1] with SLOTS threads
    int *block_table, *held, *owner, *free_blocks;  // [SLOTS, MAX_BLOCKS], [SLOTS], [BLOCKS], [BLOCKS]
    int *free_count, *fault;                        // [1]
    const int *length, *active;                     // [SLOTS]
    int* active_count;                              // [1]
    long long* stamps;                              // [_, 5]
    const int* step;                                // [1]
};

extern "C" __global__ __launch_bounds__(SLOTS) void kv_reserve(const KVReserveArguments args) {
    __shared__ int wanted[SLOTS];
    await_previous();
    let_next_start();
    // Requested at once. Beyond active_count, too, the list holds a slot that exists.
    const int a = threadIdx.x, count = *args.active_count, slot = args.active[a], now = *args.step, top = *args.free_count;
    if (count == 0) return;
    if (a == 0) args.stamps[now * STAMPS + STEP_BEGAN] = device_nanoseconds();
    const int have = args.held[slot], at = args.length[slot];
    const bool too_long = a < count && at + ROWS > MAX_POSITIONS;
    wanted[a] = a < count && !too_long ? max(0, blocks_for(at + ROWS) - have) : 0;
    __syncthreads();
    const int2 taken = sum_before(wanted, a);
    if (taken.y > top || too_long) {
        atomicOr(args.fault, KV_EXHAUSTED);
        *args.active_count = 0;  // nothing more may be written
    }
    if (taken.y > top) return;
    if (a == 0) *args.free_count = top - taken.y;
    if (a >= count || too_long) return;

    int* table = args.block_table + slot * MAX_BLOCKS;
    bool intact = true;
    for (int i = 0; i < wanted[a]; ++i) {
        const int block = args.free_blocks[top - 1 - taken.x - i];
        intact &= block >= 0 && block < BLOCKS && atomicExch(args.owner + block, slot) == FREE;
        table[have + i] = block;
    }
    args.held[slot] = have + wanted[a];
    // From the position before the first: the draft writes that of the prompt's end.
    for (int i = max(0, at - 1) / BLOCK; i <= (at + ROWS - 1) / BLOCK; ++i)
        intact &= table[i] >= 0 && table[i] < BLOCKS && args.owner[table[i]] == slot;
    if (intact) return;
    atomicOr(args.fault, KV_INTEGRITY);
    *args.active_count = 0;
}
