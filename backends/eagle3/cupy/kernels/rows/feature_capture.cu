// features[slot][t][chunk] = x[r]: keep the residual stream at a layer boundary for the draft's next extension.
//
// REPLAYS (0: no): rows of a slot before that at length[slot] have been kept in an earlier step, and are left out: they begin
// at position verified[slot]. Rows beyond the drafts have no meaning, and are left out, too.
//
// One block per row. Layouts: x [row][HIDDEN] float32; features [slot][MAX_ROWS][FEATURES][HIDDEN] bfloat16.
#include "bf16.cuh"
#include "dependent.cuh"

#ifndef REPLAYS
#define REPLAYS 0
#endif

struct FeatureCaptureArguments {       // launched on [R]
    bf16* features;                    // [S, MAX_ROWS, FEATURES * HIDDEN]
    const float* x;                    // [R, HIDDEN]
    const int *active, *active_count;  // [S], [1]
    int chunk;
    const int *length, *verified;  // [S] only if REPLAYS
};

extern "C" __global__ __launch_bounds__(THREADS) void feature_capture(const FeatureCaptureArguments args) {
    const int a = blockIdx.x / ROWS, EACH = (HIDDEN + THREADS - 1) / THREADS;
#if !REPLAYS
    const int t = blockIdx.x % ROWS;
#endif
    await_previous();
    let_next_start();
    if (a >= *args.active_count) return;
#if REPLAYS
    const int slot = args.active[a], t = (int)blockIdx.x % ROWS - (args.length[slot] - args.verified[slot]);
    if (t < 0 || t > DRAFTS) return;
#endif
    const float* in = args.x + (long long)blockIdx.x * HIDDEN;
    bf16* out = args.features + ((long long)(args.active[a] * MAX_ROWS + t) * FEATURES + args.chunk) * HIDDEN;
    float loaded[EACH];
#pragma unroll
    for (int n = 0, i = threadIdx.x; n < EACH; ++n, i += THREADS) loaded[n] = i < HIDDEN ? in[i] : 0;
#pragma unroll
    for (int n = 0, i = threadIdx.x; n < EACH; ++n, i += THREADS)
        if (i < HIDDEN) out[i] = to_bf16(loaded[n]);
}
