// The candidates behind the rows that the draft ran on, of a slot: the TOP likeliest tokens of each row, the likeliest first,
// with the probability of the path to each. Exact ties go to the lower column, as in the draft's choice.
//
// A path's probability is the product of the draft's along it, kept as a sum of logarithms in float32, as
// backends/eagle3/reference/tree/drafting.py keeps it: that of a row, and the log-softmax of the token behind it, at most 0. So
// a child is never likelier than its parent. That holds of logits that are not finite, too: where there is no number it is 0,
// and the least number stands for minus infinity. The fault says then that nothing of it means anything.
#pragma once
#include "largest.cuh"
#include "slots.cuh"

const int WARPS = THREADS / 32;
const int STAGED_BYTES = 8192;
// So many warps join rows, each in memory of its own.
const int LIST_BYTES = PARTS * TOP * (int)sizeof(Choice);
const int JOINERS = LIST_BYTES * WARPS <= STAGED_BYTES ? WARPS : LIST_BYTES >= STAGED_BYTES ? 1 : STAGED_BYTES / LIST_BYTES;
const int RANKS = (TOP + 31) / 32;  // of a lane
#define LEAST (-3.402823466e38f)

// A candidate, by its probability as bits that compare as it does, and its column. 0 is none.
struct Candidate {
    unsigned score, column;
};

__device__ __forceinline__ unsigned ordered(float score) {
    const unsigned bits = __float_as_uint(score);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Join the candidates of `rows` rows from row `first` on, by all warps; put(row, rank, candidate) is called once for each, by
// some thread. `score_of(row)`: the probability of the row's path.
template <typename ScoreOf, typename Put>
__device__ __forceinline__ void join_rows(const Choice* candidates, const float2* sums, int first, int rows, int* fault,
                                          ScoreOf score_of, Put put) {
    __shared__ Choice lists[JOINERS][PARTS][TOP];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (warp >= JOINERS) return;
    for (int row = warp; row < rows; row += JOINERS) {
        const Choice* from = candidates + (long long)(first + row) * PARTS * TOP;
        const float2 of_part = lane < PARTS ? sums[(first + row) * PARTS + lane] : make_float2(LEAST, 0);
        for (int n = lane; n < PARTS * TOP; n += 32) lists[warp][n / TOP][n % TOP] = from[n];
        __syncwarp();
        int taken = 0;
        float largest = 0, log_sum = 0;
        Choice kept[RANKS] = {};  // those of ranks lane, lane + 32
#pragma unroll 1
        for (int n = 0; n < TOP; ++n) {
            const Choice next = take_next<PARTS, TOP>(taken, [&](int list, int i) { return lists[warp][list][i]; });
#pragma unroll
            for (int i = 0; i < RANKS; ++i) kept[i] = n == i * 32 + lane ? next : kept[i];
            if (n > 0) continue;
            largest = number_of(logit_of(next));
            log_sum = logf(warp_sum(of_part.y * __expf(of_part.x - largest)));
            if (lane == 0 && !is_finite(next)) atomicOr(fault, DRAFT_NOT_FINITE);
        }
        const float before = score_of(row);
#pragma unroll
        for (int i = 0; i < RANKS; ++i) {
            const int rank = i * 32 + lane;
            const float log_prob = fminf(number_of(logit_of(kept[i])) - largest - log_sum, 0.0f);
            float score = before + log_prob;
            score = score >= LEAST ? score : LEAST;
            if (rank < TOP) put(row, rank, Candidate{ordered(score), (unsigned)index_of(kept[i])});
        }
        __syncwarp();  // all lanes have read the lists
    }
}
