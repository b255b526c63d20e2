// features[slot][t][chunk] = x[r]: keep the residual stream at a boundary for the draft's next extension. One block per row.
#include "bf16.cuh"
#include "dependent.cuh"

extern "C" __global__ __launch_bounds__(THREADS) void feature_capture(bf16* features, const float* x, const int* active,
                                                                      const int* active_count, int chunk) {
    const int a = blockIdx.x / ROWS, t = blockIdx.x % ROWS, EACH = (HIDDEN + THREADS - 1) / THREADS;
    await_previous();
    let_next_start();
    if (a >= *active_count) return;
    const float* in = x + (long long)blockIdx.x * HIDDEN;
    bf16* out = features + ((long long)(active[a] * MAX_ROWS + t) * FEATURES + chunk) * HIDDEN;
    float kept[EACH];
#pragma unroll
    for (int n = 0, i = threadIdx.x; n < EACH; ++n, i += THREADS) kept[n] = i < HIDDEN ? in[i] : 0;
#pragma unroll
    for (int n = 0, i = threadIdx.x; n < EACH; ++n, i += THREADS)
        if (i < HIDDEN) out[i] = to_bf16(kept[n]);
}
