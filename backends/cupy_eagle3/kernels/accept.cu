// accepted[slot] = length of the longest prefix of the drafts that the target would have chosen itself. One block.
#include "argmax.cuh"
#include "dependent.cuh"
#include "slots.cuh"

extern "C" __global__ void accept(int* accepted, int* target_tokens, Choice* choices, int* fault, const int* drafts,
                                  const int* active, const int* active_count, long long* stamps, const int* step) {
    const int a = threadIdx.x;
    await_previous();
    let_next_start();
    if (a >= *active_count) return;
    if (a == 0) stamps[*step * STAMPS + VERIFIED] = device_nanoseconds();
    const int slot = active[a];
    int prefix = 0;
    for (int t = 0; t < ROWS; ++t) {
        const Choice best = choices[a * ROWS + t];
        const int token = index_of(best);
        choices[a * ROWS + t] = 0;
        target_tokens[slot * MAX_ROWS + t] = token;
        if (!is_finite(best)) atomicOr(fault, TARGET_NOT_FINITE);
        if (prefix == t && t < ROWS - 1 && drafts[slot * MAX_ROWS + t] == token) ++prefix;
    }
    accepted[slot] = prefix;
    if (a == 0) stamps[*step * STAMPS + ACCEPTED] = device_nanoseconds();
}
