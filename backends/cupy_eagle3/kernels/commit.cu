// After a step: emit the accepted tokens and the target's own, up to an end; rewind what was rejected; list who goes on.
// One block, one thread per active slot.
//
// rule = {limit, EOS ids, stop ids, ids…}: a slot ends with an EOS id (finish 1), a stop id (2), or `limit` tokens in all
// (3). Rejected positions are forgotten by length; blocks that hold none but rejected positions return to the stack, and a
// slot that has ended keeps its prompt's blocks only.
#include "dependent.cuh"
#include "kv_blocks.cuh"
#include "slots.cuh"

enum Finish { RUNNING, EOS, STOP, LENGTH };

__device__ int reason_of(int token, const int* rule) {
    const int eos = rule[1], stop = rule[2];
    for (int i = 0; i < eos + stop; ++i)
        if (rule[3 + i] == token) return i < eos ? EOS : STOP;
    return RUNNING;
}

extern "C" __global__ __launch_bounds__(SLOTS) void commit(int* length, int* root, int* emitted, int* truncated,
                                                           int* finish, int* out, int* pending, int* counts,
                                                           int* accepted_log, int* held, int* owner, int* free_blocks,
                                                           int* free_count, int* fault, int* active, int* active_count,
                                                           int* step, long long* stamps, const int* block_table,
                                                           const int* prompt_blocks, const int* accepted,
                                                           const int* target_tokens, const int* rule) {
    __shared__ int released[SLOTS], going_on[SLOTS];
    await_previous();
    let_next_start();
    const int a = threadIdx.x, count = *active_count, now = *step;
    if (count == 0) return;
    int slot = 0, have = 0, keep = 0;
    bool ended = true;
    if (a < count) {
        slot = active[a];
        const int verified = accepted[slot] + 1, room = rule[0] - emitted[slot];
        int gained = 0, reason = RUNNING, token = 0;
        while (gained < verified && gained < room && reason == RUNNING) {
            token = target_tokens[slot * MAX_ROWS + gained];
            out[slot * CAPACITY + emitted[slot] + gained] = token;
            pending[slot * MAX_ROWS + gained] = token;
            reason = reason_of(token, rule);
            ++gained;
        }
        emitted[slot] += gained;
        length[slot] += gained;
        truncated[slot] += verified - gained;
        root[slot] = token;
        counts[slot] = gained;
        finish[slot] = reason != RUNNING ? reason : gained == room ? LENGTH : RUNNING;
        accepted_log[now * SLOTS + slot] = accepted[slot];
        ended = finish[slot] != RUNNING;
        have = held[slot];
        keep = ended ? prompt_blocks[slot] : blocks_for(length[slot]);
        held[slot] = keep;
    }
    released[a] = have - keep;
    going_on[a] = !ended;
    __syncthreads();
    const int2 pushed = sum_before(released, a), listed = sum_before(going_on, a);
    const int top = *free_count;
    __syncthreads();
    for (int i = 0; i < released[a]; ++i) {
        const int block = block_table[slot * MAX_BLOCKS + keep + i];
        if (atomicExch(owner + block, FREE) != slot) atomicOr(fault, KV_INTEGRITY);
        free_blocks[top + pushed.x + i] = block;
    }
    if (!ended) active[listed.x] = slot;
    if (a == 0) {
        *free_count = top + pushed.y;
        *active_count = listed.y;
        stamps[now * STAMPS + COMMITTED] = device_nanoseconds();
        *step = now + 1;
    }
}
