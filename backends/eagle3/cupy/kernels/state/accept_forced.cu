// accepted[slot] = the count of this step that another run has recorded. The drafts up to there are emitted as if the target
// had chosen them, and the target's own token behind them. What the target chooses is read as in accept.cu, and compared with
// nothing.
//
// One block, one thread per active slot. Layouts: forced [step][SLOTS], 0 to ROWS - 1; choices [active slot][ROWS], as the LM
// head leaves them, cleared again; drafts and target_tokens [slot][MAX_ROWS].
#include "argmax.cuh"
#include "dependent.cuh"
#include "slots.cuh"

struct AcceptForcedArguments {                           // launched on [1] with S threads
    int *accepted, *target_tokens;                       // [SLOTS], [SLOTS, MAX_ROWS]
    Choice* choices;                                     // [R]
    int* fault;                                          // [1]
    const int *forced, *drafts, *active, *active_count;  // [_, SLOTS], [SLOTS, MAX_ROWS], [SLOTS], [1]
    long long* stamps;                                   // [_, 5]
    const int* step;                                     // [1]
};

extern "C" __global__ void accept_forced(const AcceptForcedArguments args) {
    // The kernel before this one, the LM head, writes nothing but choices: all else is requested before it has ended.
    const int a = threadIdx.x, count = *args.active_count, slot = args.active[a], now = *args.step;
    const int taken = args.forced[now * SLOTS + slot];
    int tokens[ROWS];
#pragma unroll
    for (int t = 0; t < ROWS - 1; ++t) tokens[t] = args.drafts[slot * MAX_ROWS + t];
    await_previous();
    let_next_start();
    if (a >= count) return;
    if (a == 0) args.stamps[now * STAMPS + VERIFIED] = device_nanoseconds();
    Choice best[ROWS];
#pragma unroll
    for (int t = 0; t < ROWS; ++t) best[t] = args.choices[a * ROWS + t];
#pragma unroll
    for (int t = 0; t < ROWS; ++t) {
        args.choices[a * ROWS + t] = 0;
        args.target_tokens[slot * MAX_ROWS + t] = t < taken ? tokens[t] : index_of(best[t]);
        if (!is_finite(best[t])) atomicOr(args.fault, TARGET_NOT_FINITE);
    }
    args.accepted[slot] = taken;
    if (a == 0) args.stamps[now * STAMPS + ACCEPTED] = device_nanoseconds();
}
