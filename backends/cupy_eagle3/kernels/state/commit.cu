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

__device__ __forceinline__ int reason_of(int token, int eos, int stop, const int* ids) {
    for (int i = 0; i < eos + stop; ++i)
        if (ids[i] == token) return i < eos ? EOS : STOP;
    return RUNNING;
}

extern "C" __global__ __launch_bounds__(SLOTS) void commit(int* length, int* last_token, int* emitted, int* truncated,
                                                           int* finish, int* out, int* pending, int* counts,
                                                           int* accepted_log, int* held, int* owner, int* free_blocks,
                                                           int* free_count, int* fault, int* active, int* active_count,
                                                           int* step, long long* stamps, const int* block_table,
                                                           const int* prompt_blocks, const int* accepted,
                                                           const int* target_tokens, const int* rule) {
    __shared__ int released[SLOTS], going_on[SLOTS];
    // Of what is read, `accept` writes the accepted drafts and the target's tokens alone. Beyond active_count, too, stands a
    // slot that there is.
    const int a = threadIdx.x, count = *active_count, slot = active[a], now = *step, top = *free_count;
    const int limit = rule[0], eos = rule[1], stop = rule[2];
    const int had = emitted[slot], was = length[slot], cut = truncated[slot], held_before = held[slot];
    const int of_prompt = prompt_blocks[slot];
    await_previous();
    let_next_start();
    if (count == 0) return;
    int have = 0, keep = 0;
    bool ended = true;
    if (a < count) {
        const int taken = accepted[slot], verified = taken + 1, room = limit - had;
        int tokens[MAX_ROWS];
#pragma unroll
        for (int t = 0; t < MAX_ROWS; ++t) tokens[t] = target_tokens[slot * MAX_ROWS + t];
        int gained = 0, reason = RUNNING, token = 0;
#pragma unroll
        for (int t = 0; t < MAX_ROWS; ++t) {
            if (t >= verified || t >= room || reason != RUNNING) continue;
            token = tokens[t];
            out[slot * CAPACITY + had + t] = token;
            pending[slot * MAX_ROWS + t] = token;
            reason = reason_of(token, eos, stop, rule + 3);
            gained = t + 1;
        }
        const int ends = reason != RUNNING ? reason : gained == room ? LENGTH : RUNNING;
        emitted[slot] = had + gained;
        length[slot] = was + gained;
        truncated[slot] = cut + verified - gained;
        last_token[slot] = token;
        counts[slot] = gained;
        finish[slot] = ends;
        accepted_log[now * SLOTS + slot] = taken;
        ended = ends != RUNNING;
        have = held_before;
        keep = ended ? of_prompt : blocks_for(was + gained);
        held[slot] = keep;
    }
    released[a] = have - keep;
    going_on[a] = !ended;
    __syncthreads();
    const int2 pushed = sum_before(released, a), listed = sum_before(going_on, a);
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
