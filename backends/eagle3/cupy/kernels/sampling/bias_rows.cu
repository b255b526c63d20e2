// logits[row] += bias, and choices[row] = the greedy choice among the sums, as if the LM head had left them so.
//
// A sum is rounded to float32 once. THREADS · COLUMNS neighbouring columns per block, grid (blocks, rows). `best` [row] and
// `finished` [row] are zero between launches.
#include "argmax.cuh"
#include "dependent.cuh"
#include "last_block.cuh"

#define FULL_WARP 0xffffffffu

struct BiasRowsArguments {    // launched on [(VOCAB - 1) / (THREADS * COLUMNS) + 1, R]
    float* logits;            // [R, VOCAB]
    Choice *choices, *best;   // [R]
    int* finished;            // [R]
    const float* bias;        // [VOCAB]
    const int* active_count;  // [1]
    int rows_per_slot;
};

extern "C" __global__ __launch_bounds__(THREADS) void bias_rows(const BiasRowsArguments args) {
    const int row = blockIdx.y;
    await_previous();
    let_next_start();
    if (row >= *args.active_count * args.rows_per_slot) return;
    float* logits = args.logits + (long long)row * VOCAB;
    Choice best = 0;
#pragma unroll
    for (int i = 0; i < COLUMNS; ++i) {
        const int column = (blockIdx.x * COLUMNS + i) * THREADS + threadIdx.x;
        if (column >= VOCAB) continue;
        const float biased = logits[column] + args.bias[column];
        logits[column] = biased;
        best = max(best, choice(biased, column));
    }
#pragma unroll
    for (int step = 16; step; step /= 2) best = max(best, __shfl_xor_sync(FULL_WARP, best, step));
    if (threadIdx.x % 32 == 0) atomicMax(args.best + row, best);
    if (is_last_of_row(args.finished + row, gridDim.x)) {
        args.choices[row] = so_far(args.best + row);
        args.best[row] = 0;
    }
}
