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
    const int first = blockIdx.x * THREADS + threadIdx.x;
    const Choice best = block_max<THREADS>(best_of<VOCAB, SPLITS * THREADS>(logits + (long long)row * VOCAB, first));
    if (threadIdx.x == 0) atomicMax(choices + row, best);
}
