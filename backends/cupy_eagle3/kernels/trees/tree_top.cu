// The TOP largest logits of every row, in PARTS parts of its columns: candidates[row][part][rank], as choices (argmax.cuh),
// the largest first, 0 behind the last column. tree_token.cu joins the parts.
//
// One block per part and row. Every warp takes the largest of its columns, TOP times; then the first warp takes the largest of
// what the warps have found. A maximum of integers does not depend on the order in which it is taken, and no two are equal.
//
// Layouts: logits [row][COLUMNS] float32.
#include "argmax.cuh"
#include "block.cuh"
#include "dependent.cuh"

static_assert(TOP >= 1 && TOP <= 64, "TOP must be 1 to 64");
static_assert(THREADS % 32 == 0 && THREADS <= 1024, "THREADS must be whole warps");

const int WARPS = THREADS / 32;
const int EACH = (COLUMNS + PARTS * THREADS - 1) / (PARTS * THREADS);  // columns of a thread

struct TreeTopArguments {
    Choice* candidates;
    const float* logits;
    const int* active_count;
    int rows_per_slot;
};

__device__ __forceinline__ Choice warp_largest(Choice value) {
#pragma unroll
    for (int step = 16; step; step /= 2) {
        const Choice other = __shfl_xor_sync(FULL_WARP, value, step);
        value = other > value ? other : value;
    }
    return value;
}

extern "C" __global__ __launch_bounds__(THREADS) void tree_top(const TreeTopArguments args) {
    __shared__ Choice found[WARPS][TOP];
    const int part = blockIdx.x, row = blockIdx.y, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    await_previous();
    let_next_start();
    if (row >= *args.active_count * args.rows_per_slot) return;
    const float* logits = args.logits + (long long)row * COLUMNS;
    Choice mine[EACH];
#pragma unroll
    for (int n = 0; n < EACH; ++n) {
        const int column = (part * EACH + n) * THREADS + threadIdx.x;
        mine[n] = column < COLUMNS ? choice(logits[column], column) : 0;
    }
#pragma unroll 1
    for (int rank = 0; rank < TOP; ++rank) {
        Choice largest = 0;
#pragma unroll
        for (int n = 0; n < EACH; ++n) largest = mine[n] > largest ? mine[n] : largest;
        largest = warp_largest(largest);
        if (lane == 0) found[warp][rank] = largest;
#pragma unroll
        for (int n = 0; n < EACH; ++n) mine[n] = mine[n] == largest ? 0 : mine[n];
    }
    __syncthreads();
    if (warp > 0) return;
    Choice* out = args.candidates + ((long long)row * PARTS + part) * TOP;
    int taken = 0;  // of the list of the warp of this lane's number
#pragma unroll 1
    for (int rank = 0; rank < TOP; ++rank) {
        const Choice own = lane < WARPS && taken < TOP ? found[lane][taken] : 0;
        const Choice largest = warp_largest(own);
        taken += own == largest;
        if (lane == 0) out[rank] = largest;
    }
}
