// Before a step: give every active slot the blocks that ROWS more positions need, and check whom they belong to. One block.
//
// Every block that the step writes must exist, and belong to its slot alone: a block shared between slots, or one that is
// also on the free stack, would be a silent corruption of another request. A violation stops all slots before it is done.
#include "dependent.cuh"
#include "kv_blocks.cuh"
#include "slots.cuh"

extern "C" __global__ __launch_bounds__(SLOTS) void kv_reserve(int* block_table, int* held, int* owner, int* free_blocks,
                                                               int* free_count, int* fault, const int* length,
                                                               const int* active, int* active_count, long long* stamps,
                                                               const int* step) {
    __shared__ int wanted[SLOTS];
    await_previous();
    let_next_start();
    // Asked for at once. Beyond active_count, too, stands a slot that there is.
    const int a = threadIdx.x, count = *active_count, slot = active[a], now = *step, top = *free_count;
    if (count == 0) return;
    if (a == 0) stamps[now * STAMPS + STEP_BEGAN] = device_nanoseconds();
    const int have = held[slot], at = length[slot];
    const bool too_long = a < count && at + ROWS > MAX_POSITIONS;
    wanted[a] = a < count && !too_long ? max(0, blocks_for(at + ROWS) - have) : 0;
    __syncthreads();
    const int2 taken = sum_before(wanted, a);
    if (taken.y > top || too_long) {
        atomicOr(fault, KV_EXHAUSTED);
        *active_count = 0;  // nothing more may be written
    }
    if (taken.y > top) return;
    if (a == 0) *free_count = top - taken.y;
    if (a >= count || too_long) return;

    int* table = block_table + slot * MAX_BLOCKS;
    bool intact = true;
    for (int i = 0; i < wanted[a]; ++i) {
        const int block = free_blocks[top - 1 - taken.x - i];
        intact &= block >= 0 && block < BLOCKS && atomicExch(owner + block, slot) == FREE;
        table[have + i] = block;
    }
    held[slot] = have + wanted[a];
    // From the position before: the draft writes that of the prompt's end.
    for (int i = max(0, at - 1) / BLOCK; i <= (at + ROWS - 1) / BLOCK; ++i)
        intact &= table[i] >= 0 && table[i] < BLOCKS && owner[table[i]] == slot;
    if (intact) return;
    atomicOr(fault, KV_INTEGRITY);
    *active_count = 0;
}
