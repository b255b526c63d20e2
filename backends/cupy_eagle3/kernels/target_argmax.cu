// choices[r] = the greedy choice of logits[r], ties to the lowest id; SPLITS blocks share a row. `accept` clears them again.
#include "argmax.cuh"
#include "block.cuh"
#include "dependent.cuh"

extern "C" __global__ __launch_bounds__(THREADS) void target_argmax(Choice* choices, const float* logits,
                                                                    const int* active_count, int rows_per_slot) {
    const int row = blockIdx.y;
    await_previous();
    let_next_start();
    if (row >= *active_count * rows_per_slot) return;
    Choice best = 0;
#pragma unroll 4
    for (int i = blockIdx.x * THREADS + threadIdx.x; i < VOCAB; i += SPLITS * THREADS)
        best = max(best, choice(logits[(long long)row * VOCAB + i], i));
    best = block_max<THREADS>(best);
    if (threadIdx.x == 0) atomicMax(choices + row, best);
}
