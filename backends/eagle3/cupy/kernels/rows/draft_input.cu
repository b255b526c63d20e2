// The attention input of the rows that the draft extends over: input[r] = [norm(embed(token)), norm(hidden[r])].
//
// One block per row. Layouts: input [row][2 · HIDDEN]; hidden [row][HIDDEN] float32; pending [slot][MAX_ROWS].
//
// Row t of a slot belongs to token t of `pending`, one ahead of its feature; rows beyond counts[slot] repeat the last one.
// Only the last valid row goes on through the layer: its hidden state becomes stream[a].
#include "dependent.cuh"
#include "draft_row.cuh"

struct DraftInputArguments {                                // launched on [R]
    bf16* input;                                            // [R, 2 * HIDDEN]
    float* stream;                                          // [S, HIDDEN]
    const float* hidden;                                    // [R, HIDDEN]
    const bf16 *embedding, *embedding_norm, *feature_norm;  // [_, HIDDEN], [HIDDEN], [HIDDEN]
    const int *pending, *counts, *active, *active_count;    // [S, MAX_ROWS], [S], [S], [1]
    float eps;
};

extern "C" __global__ __launch_bounds__(THREADS) void draft_input(const DraftInputArguments args) {
    const int a = blockIdx.x / ROWS, t = blockIdx.x % ROWS;
    bf16* row = args.input + (long long)blockIdx.x * 2 * HIDDEN;
    HalfRow embedded, own;
    prefetch_norms(args.embedding_norm, args.feature_norm);
    // The embedding does not wait for the product before this kernel. What stands before that product lets it start only when
    // all else has ended: `commit`, which wrote the tokens and lists, and whatever read `input` last.
    const int count = *args.active_count, slot = args.active[a];
    int newest = 0;
    if (a < count) {
        newest = args.counts[slot] - 1;
        const long long token = args.pending[slot * MAX_ROWS + min(t, newest)];
        load_embedding(embedded, args.embedding + token * HIDDEN, args.embedding_norm);
        finish_embedding(embedded, row, args.eps);
    }
    await_previous();
    let_next_start();
    if (a >= count) return;
    const float* mine = args.hidden + (long long)blockIdx.x * HIDDEN;
    own.load([&](int i) { return mine[i]; }, args.feature_norm);
    finish_hidden(own, row, t == newest ? args.stream + (long long)a * HIDDEN : nullptr, args.eps);
}
