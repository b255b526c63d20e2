// out[r] = the captured features of the rows that the draft extends over, packed, and normed as the draft wants it:
// NORM 0 not at all, 1 each captured stream on its own, 2 all of them as one row.
//
// One block per row. Layouts: features [slot][MAX_ROWS][FEATURES · HIDDEN]; out [row][FEATURES · HIDDEN].
//
// A slot's first counts[slot] rows are valid; the rows after them repeat the last, so that no row holds stale numbers.
#include "dependent.cuh"
#include "norm.cuh"

static_assert(NORM == 0 || NORM == 1 || NORM == 2, "NORM: 0 none, 1 each stream, 2 all streams");

struct FeatureRowsArguments {                   // launched on [R]
    bf16* out;                                  // [R, FEATURES * HIDDEN]
    const bf16* features;                       // [S, MAX_ROWS, FEATURES * HIDDEN]
    const bf16* weight;                         // [FEATURES * HIDDEN] if NORM
    const int *counts, *active, *active_count;  // [S], [S], [1]
    float eps;
};

extern "C" __global__ __launch_bounds__(THREADS) void feature_rows(const FeatureRowsArguments args) {
    const int PARTS = NORM == 1 ? FEATURES : 1, WIDTH = FEATURES * HIDDEN / PARTS, EACH = (WIDTH + THREADS - 1) / THREADS;
    const int a = blockIdx.x / ROWS, t = blockIdx.x % ROWS, count = *args.active_count, slot = args.active[a];
    bf16* row = args.out + (long long)blockIdx.x * WIDTH * PARTS;
    // Features are of the step before. Between its end and this kernel stands `kv_reserve`, which changes nothing that is read
    // here but the count, to 0, for a fault: then nobody reads what is written here.
    NormRow<WIDTH, THREADS> parts[PARTS];
    bf16 loaded[EACH];
    if (a < count) {
        const bf16* in = args.features + (long long)(slot * MAX_ROWS + min(t, args.counts[slot] - 1)) * WIDTH * PARTS;
        if (NORM) {
#pragma unroll
            for (int part = 0; part < PARTS; ++part)
                parts[part].load([&](int i) { return to_float(in[part * WIDTH + i]); }, args.weight + part * WIDTH);
        } else {
#pragma unroll
            for (int n = 0, i = threadIdx.x; n < EACH; ++n, i += THREADS) loaded[n] = i < WIDTH ? in[i] : 0;
        }
    }
    await_previous();
    let_next_start();
    if (a >= count) return;
    if (NORM) {
#pragma unroll
        for (int part = 0; part < PARTS; ++part)
            parts[part].finish(args.eps, [&](int i, float, bf16 normed) { row[part * WIDTH + i] = normed; });
    } else {
#pragma unroll
        for (int n = 0, i = threadIdx.x; n < EACH; ++n, i += THREADS)
            if (i < WIDTH) row[i] = loaded[n];
    }
}
