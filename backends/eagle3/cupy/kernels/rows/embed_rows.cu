// x[r] = embedding of the row's token, float32: row 0 of a slot is its last token, row t is draft t - 1. And the pre-norm
// input of the first layer: normed = x · norm_weight, squares = sums of x² over eight elements each.
//
// REPLAYS (0: no): the rows begin with those tokens that no full verification has seen, at position verified[slot], and go on
// with the last token and the drafts. Rows behind these repeat the last draft.
//
// One block per row. Layouts: x and normed [row][HIDDEN]; squares [row][HIDDEN / 8]; drafts [slot][MAX_ROWS].
#include "bf16.cuh"
#include "dependent.cuh"
#include "prefetch.cuh"
#include "slots.cuh"

#ifndef REPLAYS
#define REPLAYS 0
#endif

static_assert(HIDDEN % 8 == 0, "HIDDEN must be a multiple of 8");

struct EmbedRowsArguments {                                  // launched on [R]
    float* x;                                                // [R, HIDDEN]
    bf16* normed;                                            // [R, HIDDEN]
    float* squares;                                          // [R, HIDDEN / 8]
    const bf16 *embedding, *norm_weight;                     // [_, HIDDEN], [HIDDEN]
    const int *last_token, *drafts, *active, *active_count;  // [S], [S, MAX_ROWS], [S], [1]
    long long* stamps;                                       // [_, 5]
    const int* step;                                         // [1]
    const int *out, *emitted, *length, *verified;            // [S, CAPACITY], [S], [S], [S] only if REPLAYS
};

extern "C" __global__ __launch_bounds__(THREADS) void embed_rows(const EmbedRowsArguments args) {
    const int a = blockIdx.x / ROWS, t = blockIdx.x % ROWS;
    prefetch<THREADS>(args.norm_weight, HIDDEN * sizeof(bf16));
    // No cache holds an embedding. The last token is known since the last step's commit and so, but for a fault, is the count.
    if (!REPLAYS && t == 0 && a < *args.active_count)
        prefetch<THREADS>(args.embedding + (long long)args.last_token[args.active[a]] * HIDDEN, HIDDEN * sizeof(bf16));
    await_previous();
    const int count = *args.active_count, slot = args.active[a];  // one trip to memory for both
    if (a >= count) return;
    if (blockIdx.x == 0 && threadIdx.x == 0) args.stamps[*args.step * STAMPS + DRAFTED] = device_nanoseconds();
#if REPLAYS
    const int before = args.length[slot] - args.verified[slot];  // rows before that of the last token
    const long long token = t <= before ? args.out[(long long)slot * CAPACITY + args.emitted[slot] - 1 - before + t]
                                        : args.drafts[slot * MAX_ROWS + min(t - before, DRAFTS) - 1];
#else
    const long long token = t == 0 ? args.last_token[slot] : args.drafts[slot * MAX_ROWS + t - 1];
#endif
    const bf16* in = args.embedding + token * HIDDEN;
    for (int group = threadIdx.x; group < HIDDEN / 8; group += THREADS) {
        const long long at = (long long)blockIdx.x * HIDDEN + group * 8;
        float sum = 0;
        const uint4 eight = reinterpret_cast<const uint4*>(in)[group];
        const uint4 weights = reinterpret_cast<const uint4*>(args.norm_weight)[group];
        const bf16 *value_of = reinterpret_cast<const bf16*>(&eight), *weight_of = reinterpret_cast<const bf16*>(&weights);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const float value = to_float(value_of[i]);
            args.x[at + i] = value;
            args.normed[at + i] = to_bf16(value * to_float(weight_of[i]));
            sum += value * value;
        }
        args.squares[at / 8] = sum;
    }
    let_next_start();  // not before the embedding, which no cache holds, is here: see draft_token.cu
}
