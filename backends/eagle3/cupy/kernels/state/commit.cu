// Ends a step: emit the accepted tokens and the target's own, up to an end; forget what was rejected; give cache blocks back;
// list the slots that go on.
//
// One block, one thread per active slot. Layouts: out [slot][CAPACITY]; pending and target_tokens [slot][MAX_ROWS];
// accepted_log [step][slot]; block_table [slot][MAX_BLOCKS]; stamps [step][STAMPS].
//
// rule = {limit, number of EOS ids, number of stop ids, ids…}. A slot ends with an EOS id (finish 1), with a stop id (2), or
// when it has emitted `limit` tokens in all (3). Rejected positions are forgotten by setting `length`; cache blocks that hold
// none but rejected positions return to the stack; a slot that has ended keeps the blocks of its prompt only.
#include "dependent.cuh"
#include "kv_blocks.cuh"
#include "slots.cuh"

// The most tokens that a step emits: fewer than its rows where these are a tree's.
#ifndef MOST_EMITTED
#define MOST_EMITTED MAX_ROWS
#endif

struct CommitArguments {                                      // launched on [1] with SLOTS threads
    int *length, *last_token, *emitted, *truncated, *finish;  // [SLOTS]
    int *out, *pending, *counts;                              // [SLOTS, CAPACITY], [SLOTS, MAX_ROWS], [SLOTS]
    int* accepted_log;
    int *held, *owner, *free_blocks, *free_count, *fault, *active;  // [SLOTS], [_], [_], [1], [1], [SLOTS]
    int *active_count, *step;                                       // [1]
    long long* stamps;                                              // [_, 5]
    const int *block_table, *prompt_blocks, *accepted;              // [SLOTS, MAX_BLOCKS], [SLOTS], [SLOTS]
    const int *target_tokens, *rule;                                // [SLOTS, MAX_ROWS], [3]
};

enum Finish { RUNNING, EOS, STOP, LENGTH };

// Why a slot ends with `token`, if it does.
__device__ __forceinline__ int reason_of(int token, int eos, int stop, const int* ids) {
    for (int i = 0; i < eos + stop; ++i)
        if (ids[i] == token) return i < eos ? EOS : STOP;
    return RUNNING;
}

// What is known of a slot before the kernel before this one, `accept`, has ended: that writes `accepted` and `target_tokens`
// alone.
struct Before {
    int slot, step, limit, eos, stop;
    int emitted, length, truncated, held, prompt_blocks;
};

// What became of it: blocks that it held and that it keeps, and whether it has ended.
struct After {
    int held, keep;
    bool ended;
};

// Emit the slot's verified tokens, those that were accepted and the target's own after them.
__device__ __forceinline__ After emit(const CommitArguments& args, const Before& before) {
    const int slot = before.slot, taken = args.accepted[slot], verified = taken + 1, room = before.limit - before.emitted;
    int tokens[MOST_EMITTED];
#pragma unroll
    for (int t = 0; t < MOST_EMITTED; ++t) tokens[t] = args.target_tokens[slot * MAX_ROWS + t];
    int gained = 0, reason = RUNNING, token = 0;
#pragma unroll
    for (int t = 0; t < MOST_EMITTED; ++t) {
        if (t >= verified || t >= room || reason != RUNNING) continue;
        token = tokens[t];
        args.out[slot * CAPACITY + before.emitted + t] = token;
        args.pending[slot * MAX_ROWS + t] = token;
        reason = reason_of(token, before.eos, before.stop, args.rule + 3);
        gained = t + 1;
    }
    const int finish = reason != RUNNING ? reason : gained == room ? LENGTH : RUNNING;
    const bool ended = finish != RUNNING;
    args.emitted[slot] = before.emitted + gained;
    args.length[slot] = before.length + gained;
    args.truncated[slot] = before.truncated + verified - gained;
    args.last_token[slot] = token;
    args.counts[slot] = gained;
    args.finish[slot] = finish;
    args.accepted_log[before.step * SLOTS + slot] = taken;
    const int keep = ended ? before.prompt_blocks : blocks_for(before.length + gained);
    args.held[slot] = keep;
    return {before.held, keep, ended};
}

extern "C" __global__ __launch_bounds__(SLOTS) void commit(const CommitArguments args) {
    __shared__ int released[SLOTS], going_on[SLOTS];
    // Beyond active_count, too, the list holds a slot that exists.
    const int a = threadIdx.x, count = *args.active_count, slot = args.active[a], now = *args.step, top = *args.free_count;
    const Before before = {slot,
                           now,
                           args.rule[0],
                           args.rule[1],
                           args.rule[2],
                           args.emitted[slot],
                           args.length[slot],
                           args.truncated[slot],
                           args.held[slot],
                           args.prompt_blocks[slot]};
    await_previous();
    let_next_start();
    if (count == 0) return;
    After after = {0, 0, true};
    if (a < count) after = emit(args, before);
    released[a] = after.held - after.keep;
    going_on[a] = !after.ended;
    __syncthreads();
    const int2 pushed = sum_before(released, a), listed = sum_before(going_on, a);
    for (int i = 0; i < released[a]; ++i) {
        const int block = args.block_table[slot * MAX_BLOCKS + after.keep + i];
        if (atomicExch(args.owner + block, FREE) != slot) atomicOr(args.fault, KV_INTEGRITY);
        args.free_blocks[top + pushed.x + i] = block;
    }
    if (!after.ended) args.active[listed.x] = slot;
    if (a == 0) {
        *args.free_count = top + pushed.y;
        *args.active_count = listed.y;
        args.stamps[now * STAMPS + COMMITTED] = device_nanoseconds();
        *args.step = now + 1;
    }
}
