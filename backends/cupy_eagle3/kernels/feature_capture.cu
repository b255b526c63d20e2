// features[slot][t][chunk] = x[r]: keep the residual stream at a boundary for the draft's next extension. One block per row.
#include "bf16.cuh"
#include "dependent.cuh"

extern "C" __global__ __launch_bounds__(THREADS) void feature_capture(bf16* features, const float* x, const int* active,
                                                                      const int* active_count, int chunk) {
    const int a = blockIdx.x / ROWS, t = blockIdx.x % ROWS;
    await_previous();
    let_next_start();
    if (a >= *active_count) return;
    bf16* out = features + ((long long)(active[a] * MAX_ROWS + t) * FEATURES + chunk) * HIDDEN;
    for (int i = threadIdx.x; i < HIDDEN; i += THREADS) out[i] = to_bf16(x[(long long)blockIdx.x * HIDDEN + i]);
}
