// Decides about the drafts of a full verification, as accept.cu does, where each slot has run its newest tokens again: rows
// 0 … before - 1, which no full verification has seen until now, stand before the last token and the drafts. `before` is
// length - verified.
//
// Of the tokens behind those rows, it counts how many the target would not have chosen: overruled[slot] grows by that. They
// stay. Then all positions are verified, up to those of the accepted drafts: verified[slot], and so is what the next partial
// verifications leave out: dropped[slot] positions, and bounded[slot] blocks have bounds.
//
// One warp per active slot. Layouts: choices [active slot][ROWS], as the LM head leaves them, cleared again; drafts and
// target_tokens [slot][MAX_ROWS]; out [slot][CAPACITY].
#include "argmax.cuh"
#include "block.cuh"
#include "dependent.cuh"
#include "middle.cuh"
#include "slots.cuh"

struct AcceptReplayedArguments {                                   // launched on [S] with 32 threads
    int *accepted, *target_tokens, *verified, *dropped, *bounded;  // [S], [S, MAX_ROWS], [S], [S], [S]
    int* overruled;                                                // [S]
    Choice* choices;                                               // [R]
    int* fault;                                                    // [1]
    const int *drafts, *out, *emitted, *length, *active;           // [S, MAX_ROWS], [S, CAPACITY], [S], [S], [S]
    const int* active_count;                                       // [1]
    long long* stamps;                                             // [_, 5]
    const int* step;                                               // [1]
};

extern "C" __global__ __launch_bounds__(32) void accept_replayed(const AcceptReplayedArguments args) {
    __shared__ int tokens[ROWS];  // that the target chooses behind each row
    const int a = blockIdx.x, lane = threadIdx.x;
    await_previous();
    let_next_start();
    if (a >= *args.active_count) return;
    const int slot = args.active[a], length = args.length[slot], before = length - args.verified[slot], now = *args.step;
    if (a == 0 && lane == 0) args.stamps[now * STAMPS + VERIFIED] = device_nanoseconds();
    const int* text = args.out + (long long)slot * CAPACITY + args.emitted[slot] - 1 - before;
    int wrong = 0;
    for (int t = lane; t < ROWS; t += 32) {
        const Choice best = args.choices[a * ROWS + t];
        args.choices[a * ROWS + t] = 0;
        tokens[t] = index_of(best);
        if (t <= before + DRAFTS && !is_finite(best)) atomicOr(args.fault, TARGET_NOT_FINITE);
        wrong += t < before && tokens[t] != text[t + 1];
    }
#pragma unroll
    for (int step = 16; step; step /= 2) wrong += __shfl_xor_sync(FULL_WARP, wrong, step);
    __syncwarp();
    for (int t = lane; t <= DRAFTS; t += 32) args.target_tokens[slot * MAX_ROWS + t] = tokens[before + t];
    if (lane > 0) return;
    int prefix = 0;
    while (prefix < DRAFTS && args.drafts[slot * MAX_ROWS + prefix] == tokens[before + prefix]) ++prefix;
    const int end = end_of_middle(length);
    args.accepted[slot] = prefix;
    args.overruled[slot] += wrong;
    args.verified[slot] = length + prefix + 1;
    args.dropped[slot] = max(0, end - SINK_BLOCKS - RETRIEVED) * KEPT;
    args.bounded[slot] = max(args.bounded[slot], end);
    if (a == 0) args.stamps[now * STAMPS + ACCEPTED] = device_nanoseconds();
}
