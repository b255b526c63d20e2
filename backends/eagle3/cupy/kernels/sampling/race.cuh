// The exponential race that a token is drawn by. Every column runs for E / p, where p is its probability and E an exponential
// of its own, and the first wins: the column of the largest score, logit / TEMPERATURE - log(E).
//
// E belongs to (seed, request, position, token), whoever draws: the numbers of specgate/sampling/keys.py. Two tokens share a
// block of Philox; each takes 26 bits of two words, of which u = (whole + 1/2) / 2^52 is made, which is neither 0 nor 1.
//
// Rounding. A score is computed in float64, as the reference does: no two columns of a row change places but within 2^-34 of
// their scores, where the lower column wins. Few are computed at all: a bound from above in float32 tells which columns cannot
// win. The result is a maximum of integers, so it does not depend on who computes what, in which order.
#pragma once
#include "philox.cuh"
#include "rank.cuh"

// What a number is for, as specgate/sampling/keys.py has it.
enum Purpose { FOR_TARGET, FOR_DRAFT, FOR_ACCEPTANCE, FOR_RESIDUAL };

// The score of a column that does not run: minus infinity.
#define NO_SCORE __uint_as_float(0xff800000u)

// The 46 upper bits of a score, which compare as the scores do, above 18 bits of the column. 0: nobody ran.
typedef unsigned long long Runner;

__device__ __forceinline__ Runner runner(double score, int column) {
    const unsigned long long bits = (unsigned long long)__double_as_longlong(score);
    const unsigned long long ordered = bits >> 63 ? ~bits : bits | 1ull << 63;
    return (ordered & ~(unsigned long long)LAST_COLUMN) | (LAST_COLUMN - (unsigned)column);
}

__device__ __forceinline__ int column_of(Runner best) { return (int)(LAST_COLUMN - ((unsigned)best & LAST_COLUMN)); }

// The runner's score, or what is just below it.
__device__ __forceinline__ double score_of(Runner best) {
    if (best == 0) return NO_SCORE;
    const unsigned long long ordered = best & ~(unsigned long long)LAST_COLUMN;
    if (ordered >> 63) return __longlong_as_double((long long)(ordered ^ 1ull << 63));
    return __longlong_as_double((long long)~(ordered | LAST_COLUMN));
}

// Of a row: which random numbers it draws with.
struct Numbers {
    uint2 seed;
    unsigned position, request_low, request_high;

    // 52 random bits of a token.
    __device__ __forceinline__ uint4 block_of(int token, Purpose purpose) const {
        return philox(make_uint4((unsigned)token / 2, 4 * position + purpose, request_low, request_high), seed);
    }
};

// The words of a token: the first or the second two of its block.
__device__ __forceinline__ uint2 words_of(uint4 block, int token) {
    return token % 2 ? uint2{block.z, block.w} : uint2{block.x, block.y};
}

// E is at least 1 - u, since -log(u) >= 1 - u. In float32, rounded; never 0.
__device__ __forceinline__ float least_exponential(uint2 words) {
    const float high = (float)(0x3ffffffu - (words.x >> 6)), low = (float)(0x3ffffffu - (words.y >> 6)) + 0.5f;
    return high * 0x1p-26f + low * 0x1p-52f;
}

__device__ __forceinline__ double uniform(uint2 words) {
    const double whole = (double)(words.x >> 6) * 0x1p26 + (double)(words.y >> 6);
    return (whole + 0.5) * 0x1p-52;
}

__device__ __forceinline__ double exponential(uint2 words) { return -log(uniform(words)); }

__device__ __forceinline__ double exact_score(float logit, float largest, uint2 words) {
    return ((double)logit - (double)largest) / TEMPERATURE - log(exponential(words));
}

// Not below the exact score: the terms are wrong by far less than what is added. `logit` is `largest` or less.
__device__ __forceinline__ float highest_score(float logit, float largest, uint2 words) {
    const float INVERSE = 1.0 / TEMPERATURE < 1e30 ? (float)(1.0 / TEMPERATURE) : 1e30f;
    return (logit - largest) * INVERSE * 0.999999f - __logf(least_exponential(words)) + 1e-4f;
}
