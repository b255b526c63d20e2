// Lists, for each layer, slot and key/value head, the RETRIEVED blocks of the middle with the largest scores, ascending; of
// blocks with the same score the lowest ones. Where the middle has no more than that, all of it.
//
// One block of threads each. A score becomes an integer of the same order, and the RETRIEVED-th largest of these is found bit
// by bit, from the highest on, by counting. Counts are sums of integers: no order of threads changes them.
//
// Layouts: kept [layer][SLOTS][KV_HEADS][RETRIEVED]; scores [layer][slots][KV_HEADS][STRIDE].
#include "block.cuh"
#include "dependent.cuh"
#include "middle.cuh"

static_assert(THREADS % 32 == 0 && THREADS <= 1024, "THREADS must be whole warps");

const int WARPS = THREADS / 32, EACH = (STRIDE + THREADS - 1) / THREADS;

struct ChooseBlocksArguments {                  // launched on [KV_HEADS, LAYERS * S]
    int* kept;                                  // [LAYERS, SLOTS, KV_HEADS, RETRIEVED]
    const float* scores;                        // [LAYERS * S, KV_HEADS, STRIDE]
    const int *length, *active, *active_count;  // [S], [S], [1]
    int slots;
};

// Of `value` over all threads: the sum of those before this one (x), and of all (y).
__device__ __forceinline__ int2 sums_over_threads(int value) {
    __shared__ int of_warp[WARPS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int through = value;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const int below = __shfl_up_sync(FULL_WARP, through, step);
        if (lane >= step) through += below;
    }
    __syncthreads();  // by now all threads have read the sums of an earlier call
    if (lane == 31) of_warp[warp] = through;
    __syncthreads();
    int before = through - value, all = 0;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) {
        if (w < warp) before += of_warp[w];
        all += of_warp[w];
    }
    return make_int2(before, all);
}

// An integer of the order of scores, never 0. Minus zero is zero.
__device__ __forceinline__ unsigned ordered(float score) {
    const unsigned bits = __float_as_uint(score + 0.0f);
    return max(1u, bits & 0x80000000u ? ~bits : bits | 0x80000000u);
}

extern "C" __global__ __launch_bounds__(THREADS) void choose_blocks(const ChooseBlocksArguments args) {
    const int layer = blockIdx.y / args.slots, a = blockIdx.y % args.slots, kv_head = blockIdx.x;
    await_previous();
    let_next_start();
    if (a >= *args.active_count) return;
    const int slot = args.active[a], end = end_of_middle(args.length[slot]);
    const float* scores = args.scores + ((long long)blockIdx.y * KV_HEADS + kv_head) * STRIDE;
    int* kept = args.kept + (((long long)layer * SLOTS + slot) * KV_HEADS + kv_head) * RETRIEVED;
    unsigned mine[EACH];  // of EACH neighbouring blocks; 0 where one is not of the middle
#pragma unroll
    for (int n = 0; n < EACH; ++n) {
        const int block = threadIdx.x * EACH + n;
        mine[n] = block >= SINK_BLOCKS && block < end ? ordered(scores[block]) : 0;
    }
    unsigned least = 0;  // the score of the last block that is kept; 0 where all are
    if (end - SINK_BLOCKS > RETRIEVED)
#pragma unroll 1
        for (int bit = 31; bit >= 0; --bit) {
            const unsigned asked = least | 1u << bit;
            int count = 0;
#pragma unroll
            for (int n = 0; n < EACH; ++n) count += mine[n] >= asked;
            if (sums_over_threads(count).y >= RETRIEVED) least = asked;
        }
    int better = 0, equal = 0;
#pragma unroll
    for (int n = 0; n < EACH; ++n) better += mine[n] > least, equal += mine[n] == least;
    const int2 of_better = sums_over_threads(better), of_equal = sums_over_threads(equal);
    const int most = least ? RETRIEVED - of_better.y : 0;  // of equal ones
    int before = of_better.x, ties = of_equal.x;
#pragma unroll
    for (int n = 0; n < EACH; ++n) {
        const bool tie = mine[n] == least, taken = mine[n] > least || (tie && ties < most);
        if (taken) kept[before + min(ties, most)] = threadIdx.x * EACH + n;
        before += mine[n] > least, ties += tie;
    }
}
