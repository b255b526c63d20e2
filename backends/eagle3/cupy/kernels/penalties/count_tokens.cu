// history[slot][token] += how often the slot has emitted the token since it was counted last: in the step before this one or,
// in the first one, by prefill.
//
// One block per active slot, a thread for each of its newest tokens: pending [slot][MAX_ROWS], of which there are counts[slot].
#include "dependent.cuh"

struct CountTokensArguments {                             // launched on [S] with MAX_ROWS threads
    int* history;                                         // [S, VOCAB]
    const int *pending, *counts, *active, *active_count;  // [S, MAX_ROWS], [S], [S], [1]
};

extern "C" __global__ void count_tokens(const CountTokensArguments args) {
    const int a = blockIdx.x, t = threadIdx.x;
    await_previous();
    let_next_start();
    if (a >= *args.active_count) return;
    const int slot = args.active[a];
    if (t < args.counts[slot]) atomicAdd(args.history + (long long)slot * VOCAB + args.pending[slot * MAX_ROWS + t], 1);
}
