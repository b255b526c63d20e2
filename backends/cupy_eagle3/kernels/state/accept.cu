// accepted[slot] = length of the longest prefix of the drafts that the target would have chosen itself. One block.
#include "argmax.cuh"
#include "dependent.cuh"
#include "slots.cuh"

extern "C" __global__ void accept(int* accepted, int* target_tokens, Choice* choices, int* fault, const int* drafts,
                                  const int* active, const int* active_count, long long* stamps, const int* step) {
    // What the LM head leaves is all that has to be waited for, and asked for at once.
    const int a = threadIdx.x, count = *active_count, slot = active[a], now = *step;
    int drafted[ROWS];
#pragma unroll
    for (int t = 0; t < ROWS - 1; ++t) drafted[t] = drafts[slot * MAX_ROWS + t];
    await_previous();
    let_next_start();
    if (a >= count) return;
    if (a == 0) stamps[now * STAMPS + VERIFIED] = device_nanoseconds();
    Choice best[ROWS];
#pragma unroll
    for (int t = 0; t < ROWS; ++t) best[t] = choices[a * ROWS + t];
    int prefix = 0;
#pragma unroll
    for (int t = 0; t < ROWS; ++t) {
        const int token = index_of(best[t]);
        choices[a * ROWS + t] = 0;
        target_tokens[slot * MAX_ROWS + t] = token;
        if (!is_finite(best[t])) atomicOr(fault, TARGET_NOT_FINITE);
        if (prefix == t && t < ROWS - 1 && drafted[t] == token) ++prefix;
    }
    accepted[slot] = prefix;
    if (a == 0) stamps[now * STAMPS + ACCEPTED] = device_nanoseconds();
}
