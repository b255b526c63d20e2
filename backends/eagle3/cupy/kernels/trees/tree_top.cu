// The TOP largest logits of every row, in PARTS parts of its columns: candidates[row][part][rank], as choices (argmax.cuh),
// the largest first, 0 behind the last column. What joins the parts: joined_rows.cuh. Also what a softmax needs:
// sums[row][part] = {the part's largest logit, the sum of the powers of e of all its logits below that}.
//
// One block per part and row. The TOP-th of the largest logits of a warp's lanes is no larger than the TOP-th of the block's:
// what is below it need not be looked at again. The few others are counted against each other. Where they are many, as where
// most logits are equal, every warp takes the largest of its columns, TOP times, and the first warp the largest of what
// the warps have found. A maximum of integers does not depend on the order in which it is taken, and no two are equal.
//
// Layouts: logits [row][COLUMNS] float32.
#include "dependent.cuh"
#include "largest.cuh"

static_assert(TOP >= 1 && TOP <= 64, "TOP must be 1 to 64");
static_assert((WIDE == 1 || WIDE == 4) && COLUMNS % WIDE == 0, "WIDE columns are loaded at once");
static_assert(THREADS % 32 == 0 && THREADS <= 1024, "THREADS must be whole warps");

const int WARPS = THREADS / 32;
const int EACH = (COLUMNS + PARTS * THREADS * WIDE - 1) / (PARTS * THREADS * WIDE) * WIDE;  // columns of a thread
#define NOTHING (-3e38f)                                                                    // of columns: below every logit

struct TreeTopArguments {     // launched on [PARTS, R]
    Choice* candidates;       // [R * PARTS * TOP]
    float2* sums;             // [R * PARTS, 2]
    const float* logits;      // [R, COLUMNS]
    const int* active_count;  // [1]
    int rows_per_slot;
};

// Logits as bits that compare as they do, 0 behind the last column: those of a thread, its columns in ascending order.
typedef unsigned Logits[EACH];

__device__ __forceinline__ int column_of(int n) {
    return ((blockIdx.x * (EACH / WIDE) + n / WIDE) * THREADS + threadIdx.x) * WIDE + n % WIDE;
}

__device__ __forceinline__ void load(Logits& mine, const float* logits) {
#pragma unroll
    for (int n = 0; n < EACH; n += WIDE) {
        const int column = column_of(n);
        float of[WIDE] = {};
        if (column < COLUMNS) {
#if WIDE == 1
            of[0] = logits[column];
#else
            const float4 four = *reinterpret_cast<const float4*>(logits + column);
            of[0] = four.x, of[1] = four.y, of[2] = four.z, of[3] = four.w;
#endif
        }
#pragma unroll
        for (int i = 0; i < WIDE; ++i) mine[n + i] = column < COLUMNS ? logit_of(choice(of[i], 0)) : 0;
    }
}

// The sum of the warp's powers below `largest`, which is the largest of its logits.
__device__ __forceinline__ float sum_of_powers(const Logits& mine, float largest) {
    float sum = 0;
#pragma unroll
    for (int n = 0; n < EACH; ++n) sum += mine[n] ? __expf(number_of(mine[n]) - largest) : 0;
    return warp_sum(sum);
}

// The largest of the warp's columns, TOP times.
__device__ __forceinline__ void take_all(Choice (&found)[TOP], Logits& mine) {
#pragma unroll 1
    for (int rank = 0; rank < TOP; ++rank) {
        Choice largest = 0;
#pragma unroll
        for (int n = 0; n < EACH; ++n) {
            const Choice own = mine[n] ? (Choice)mine[n] << 32 | (0xffffffffu - (unsigned)column_of(n)) : 0;
            largest = own > largest ? own : largest;
        }
        largest = warp_largest(largest);
        if (threadIdx.x % 32 == 0) found[rank] = largest;
        // No two columns are equal, so that this clears the one that was taken, in the lane that has it.
#pragma unroll
        for (int n = 0; n < EACH; ++n)
            if (mine[n] == logit_of(largest) && column_of(n) == index_of(largest)) mine[n] = 0;
    }
}

extern "C" __global__ __launch_bounds__(THREADS) void tree_top(const TreeTopArguments args) {
    __shared__ Choice found[WARPS][TOP], kept[THREADS];
    __shared__ unsigned least_of[WARPS];
    __shared__ float2 sums[WARPS];
    __shared__ int count;
    const int part = blockIdx.x, row = blockIdx.y, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int rows = *args.active_count * args.rows_per_slot;
    if (threadIdx.x == 0) count = 0;
    await_previous();
    let_next_start();
    if (row >= rows) return;
    Logits mine;
    load(mine, args.logits + (long long)row * COLUMNS);
    unsigned largest = 0, least = 1;  // of lanes of the warp, the TOP-th largest: what equals it is taken at once
#pragma unroll
    for (int n = 0; n < EACH; ++n) largest = max(largest, mine[n]);
    const unsigned of_warp = __reduce_max_sync(FULL_WARP, largest);
    const float highest = of_warp ? number_of(of_warp) : NOTHING, sum = sum_of_powers(mine, highest);
    if (lane == 0) sums[warp] = make_float2(highest, sum);
    unsigned left = largest;
#pragma unroll 1
    for (int rank = 0; rank < TOP && TOP <= 32; ++rank) {
        least = __reduce_max_sync(FULL_WARP, left);
        if (left == least) left = 0;
    }
    if (lane == 0) least_of[warp] = least;
    __syncthreads();
    unsigned bound = 1;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) bound = max(bound, least_of[w]);
#pragma unroll
    for (int n = 0; n < EACH; ++n)
        if (mine[n] >= bound) {
            const int at = atomicAdd(&count, 1);
            if (at < THREADS) kept[at] = (Choice)mine[n] << 32 | (0xffffffffu - (unsigned)column_of(n));
        }
    __syncthreads();
    if (threadIdx.x == 0) {
        float top = NOTHING, sum = 0;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) top = sums[w].x > top || !(sums[w].x == sums[w].x) ? sums[w].x : top;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) sum += sums[w].y * __expf(sums[w].x - top);
        args.sums[row * PARTS + part] = make_float2(top, sum);
    }
    Choice* out = args.candidates + ((long long)row * PARTS + part) * TOP;
    const int few = count;
    if (few <= THREADS) {
        if ((int)threadIdx.x < TOP && (int)threadIdx.x >= few) out[threadIdx.x] = 0;
        if ((int)threadIdx.x >= few) return;
        const Choice own = kept[threadIdx.x];
        int rank = 0;
        for (int n = 0; n < few; ++n) rank += kept[n] > own;
        if (rank < TOP) out[rank] = own;
        return;
    }
    take_all(found[warp], mine);
    __syncthreads();
    if (warp > 0) return;
    int taken = 0;
#pragma unroll 1
    for (int rank = 0; rank < TOP; ++rank) {
        const Choice next = take_next<WARPS, TOP>(taken, [&](int list, int n) { return found[list][n]; });
        if (lane == 0) out[rank] = next;
    }
}
