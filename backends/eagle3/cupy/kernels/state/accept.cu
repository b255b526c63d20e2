// accepted[slot] = length of the longest prefix of the drafts that the target would have chosen itself.
//
// One block, one thread per active slot. Layouts: choices [active slot][ROWS], as the LM head leaves them, cleared again;
// drafts and target_tokens [slot][MAX_ROWS].
#include "argmax.cuh"
#include "dependent.cuh"
#include "slots.cuh"

struct AcceptArguments {                        // launched on [1] with S threads
    int *accepted, *target_tokens;              // [S], [S, MAX_ROWS]
    Choice* choices;                            // [R]
    int* fault;                                 // [1]
    const int *drafts, *active, *active_count;  // [S, MAX_ROWS], [S], [1]
    long long* stamps;                          // [_, 5]
    const int* step;                            // [1]
};

extern "C" __global__ void accept(const AcceptArguments args) {
    // The kernel before this one, the LM head, writes nothing but choices: all else is requested before it has ended.
    const int a = threadIdx.x, count = *args.active_count, slot = args.active[a], now = *args.step;
    int drafted[ROWS];
#pragma unroll
    for (int t = 0; t < ROWS - 1; ++t) drafted[t] = args.drafts[slot * MAX_ROWS + t];
    await_previous();
    let_next_start();
    if (a >= count) return;
    if (a == 0) args.stamps[now * STAMPS + VERIFIED] = device_nanoseconds();
    Choice best[ROWS];
#pragma unroll
    for (int t = 0; t < ROWS; ++t) best[t] = args.choices[a * ROWS + t];
    int prefix = 0;
#pragma unroll
    for (int t = 0; t < ROWS; ++t) {
        const int token = index_of(best[t]);
        args.choices[a * ROWS + t] = 0;
        args.target_tokens[slot * MAX_ROWS + t] = token;
        if (!is_finite(best[t])) atomicOr(args.fault, TARGET_NOT_FINITE);
        if (prefix == t && t < ROWS - 1 && drafted[t] == token) ++prefix;
    }
    args.accepted[slot] = prefix;
    if (a == 0) args.stamps[now * STAMPS + ACCEPTED] = device_nanoseconds();
}
