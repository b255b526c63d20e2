// The likeliest tokens of a row of the draft's logits, by one block. The LM head has left the maxima of every eight columns
// (maxima.cuh), so that a few logits of 32,000 are read.
//
// The TOP-th of the maxima of a warp's lanes is no larger than the TOP-th of the row's logits: what is below it need not be
// looked at. The few logits that are not are counted against each other. Where they are many, as where most are equal, the
// block takes the largest of them, one rank after the other. No two choices are equal, so that the order of threads matters
// to neither way.
#pragma once
#include "largest.cuh"
#include "maxima.cuh"

static_assert(TOP >= 1 && TOP <= 64, "TOP must be 1 to 64");
static_assert(THREADS % 32 == 0 && THREADS >= 64 && THREADS <= 1024, "two warps find a bound for 64");

const int WARPS = THREADS / 32;
const int MAXIMA = maxima_of(DRAFT_VOCAB);
const int FOURS = (MAXIMA / 4 + THREADS - 1) / THREADS;  // loads of a thread
const int ROOM = THREADS;                                // for parts, and for choices

struct Likeliest {
    const float* logits;  // of the row
    const unsigned* maxima;
    uint4 fours[FOURS];  // the thread's maxima
    unsigned largest;    // of these

    __device__ __forceinline__ Likeliest(const float* logits, const unsigned* maxima) : logits(logits), maxima(maxima) {
#pragma unroll
        for (int n = 0; n < FOURS; ++n) {
            const int at = n * THREADS + threadIdx.x;
            fours[n] = at < MAXIMA / 4 ? reinterpret_cast<const uint4*>(maxima)[at] : uint4{};
        }
    }

    // Calls each(part) for the thread's parts whose maxima reach `bound`.
    template <typename Each>
    __device__ __forceinline__ void of_parts(unsigned bound, Each each) const {
        if (largest < bound) return;
#pragma unroll
        for (int n = 0; n < FOURS; ++n) {
            const int first = (n * THREADS + threadIdx.x) * 4;
            if (fours[n].x >= bound) each(first);
            if (fours[n].y >= bound) each(first + 1);
            if (fours[n].z >= bound) each(first + 2);
            if (fours[n].w >= bound) each(first + 3);
        }
    }

    // What at least TOP logits of the row reach. Of zeros there are none.
    __device__ __forceinline__ unsigned bound() {
        __shared__ unsigned least_of[WARPS];
        largest = 0;
#pragma unroll
        for (const uint4& four : fours) largest = max(largest, max(max(four.x, four.y), max(four.z, four.w)));
        unsigned left = largest, least = 0;
#pragma unroll 1
        for (int rank = 0; rank < (TOP < 32 ? TOP : 32); ++rank) {
            least = __reduce_max_sync(FULL_WARP, left);
            if (left == least) left = 0;
        }
        if (threadIdx.x % 32 == 0) least_of[threadIdx.x / 32] = least;
        __syncthreads();
        unsigned most = 1, second = 1;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            second = max(second, min(most, least_of[w]));
            most = max(most, least_of[w]);
        }
        return TOP > 32 ? second : most;  // a warp has 32 lanes, two have as many as are asked for
    }

    // What token_of(choice) is of the choice of `rank`, to every thread; `first` becomes the choice of rank 0. `meanwhile` is
    // called while logits are on their way, and token_of while they are counted. By all threads of the block.
    template <typename Meanwhile, typename TokenOf>
    __device__ __forceinline__ int of_rank(int rank, Choice& first, Meanwhile meanwhile, TokenOf token_of) {
        __shared__ int parts[ROOM], part_count, count, token;
        __shared__ Choice kept[ROOM], largest_of_all;
        if (threadIdx.x == 0) part_count = count = token = 0, largest_of_all = 0;
        const unsigned least = bound();
        of_parts(least, [&](int part) {
            const int at = atomicAdd(&part_count, 1);
            if (at < ROOM) parts[at] = part;
        });
        __syncthreads();
        const int few_parts = part_count;
        auto choice_at = [&](int n) {
            const int column = parts[n / 8] * 8 + n % 8;
            return column < DRAFT_VOCAB ? choice(logits[column], column) : 0;
        };
        const Choice early = (int)threadIdx.x < min(few_parts, ROOM) * 8 ? choice_at(threadIdx.x) : 0;
        meanwhile();
#pragma unroll 1
        for (int n = threadIdx.x; n < min(few_parts, ROOM) * 8; n += THREADS) {
            const Choice own = n < THREADS ? early : choice_at(n);
            if (logit_of(own) < least) continue;
            const int at = atomicAdd(&count, 1);
            if (at < ROOM) kept[at] = own;
        }
        __syncthreads();
        const int few = count;
        if (few_parts <= ROOM && few <= ROOM) {
            if ((int)threadIdx.x < few) {
                const Choice own = kept[threadIdx.x];
                const int of_own = token_of(own);
                int above = 0;
                for (int n = 0; n < few; ++n) above += kept[n] > own;
                if (above == 0) largest_of_all = own;
                if (above == rank) token = of_own;
            }
        } else {
            const Choice own = take_in_turn(least, rank, largest_of_all);
            if (threadIdx.x == 0) token = token_of(own);
        }
        __syncthreads();
        first = largest_of_all;
        return token;
    }

private:
    // The largest of the logits of these parts, which becomes `first`, then the largest below that, and so on to that of
    // `rank`.
    __device__ __forceinline__ Choice take_in_turn(unsigned least, int rank, Choice& first) const {
        __shared__ Choice found[WARPS];
        Choice taken = 0;
#pragma unroll 1
        for (int n = 0; n <= rank; ++n) {
            Choice most = 0;
#pragma unroll 1
            for (int column = threadIdx.x; column < DRAFT_VOCAB; column += THREADS) {
                const Choice own = maxima[column / 8] >= least ? choice(logits[column], column) : 0;
                if ((n == 0 || own < taken) && own > most) most = own;
            }
            most = warp_largest(most);
            if (threadIdx.x % 32 == 0) found[threadIdx.x / 32] = most;
            __syncthreads();
            taken = 0;
#pragma unroll 1
            for (int w = 0; w < WARPS; ++w) taken = found[w] > taken ? found[w] : taken;
            __syncthreads();
            if (threadIdx.x == 0 && n == 0) first = taken;
        }
        return taken;
    }
};
