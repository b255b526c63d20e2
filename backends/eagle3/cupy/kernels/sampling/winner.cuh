// The winner of a race among the columns of a block: whom a bound from above tells that it cannot win does not run.
#pragma once
#include "race.cuh"

#define FULL_WARP 0xffffffffu

template <typename Value>
__device__ __forceinline__ Value warp_max(Value value) {
#pragma unroll
    for (int step = 16; step; step /= 2) {
        const Value other = __shfl_xor_sync(FULL_WARP, value, step);
        value = other > value ? other : value;
    }
    return value;
}

// A thread's columns: COLUMNS / 2 pairs of neighbours, THREADS pairs apart.
struct Columns {
    const int first = 2 * (blockIdx.x * THREADS * (COLUMNS / 2) + threadIdx.x);

    __device__ __forceinline__ int operator[](int i) const { return first + i / 2 * 2 * THREADS + i % 2; }
};

// The best of `best` and of the columns of a warp, the same in all of its threads. `highest`: what a thread's columns reach at
// most, NO_SCORE for one that does not run; `most`: the highest of them; `run(i)`: column i, at its exact score.
template <typename Run>
__device__ __forceinline__ Runner winner_of_warp(const float (&highest)[COLUMNS], float most, Runner best, const Run& run) {
    // What the column of the warp's highest bound reaches, and what is reached already, others need not be asked for.
    const float of_warp = warp_max(most);
#pragma unroll
    for (int i = 0; i < COLUMNS; ++i)
        if (highest[i] == of_warp && of_warp > NO_SCORE) best = max(best, run(i));
    best = warp_max(best);
    const float reached = (float)score_of(best);
#pragma unroll
    for (int i = 0; i < COLUMNS; ++i)
        if (highest[i] >= reached && highest[i] > NO_SCORE && highest[i] != of_warp) best = max(best, run(i));
    return warp_max(best);
}
