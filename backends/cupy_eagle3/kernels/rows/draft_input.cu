// The attention input of the rows that the draft extends over: input[r] = [norm(embed(token)), norm(hidden[r])].
//
// Row t of a slot belongs to token t of `pending`, one ahead of its feature; rows beyond counts[slot] repeat the last. Only
// the last valid row goes on through the layer: its hidden state becomes stream[a]. One block per row.
#include "dependent.cuh"
#include "draft_row.cuh"

extern "C" __global__ __launch_bounds__(THREADS) void draft_input(bf16* input, float* stream, const float* hidden,
                                                                  const bf16* embedding, const bf16* embedding_norm,
                                                                  const bf16* feature_norm, const int* pending,
                                                                  const int* counts, const int* active,
                                                                  const int* active_count, float eps) {
    const int a = blockIdx.x / ROWS, t = blockIdx.x % ROWS;
    bf16* row = input + (long long)blockIdx.x * 2 * HIDDEN;
    HalfRow embedded, own;
    prefetch_norms(embedding_norm, feature_norm);
    // The embedding does not wait for the product before this kernel. What stands before that product lets it start only when
    // all else has ended: `commit`, which wrote the tokens and lists, and whatever read `input` last.
    const int count = *active_count, slot = active[a];
    int newest = 0;
    if (a < count) {
        newest = counts[slot] - 1;
        const long long token = pending[slot * MAX_ROWS + min(t, newest)];
        load_embedding(embedded, embedding + token * HIDDEN, embedding_norm);
        finish_embedding(embedded, row, eps);
    }
    await_previous();
    let_next_start();
    if (a >= count) return;
    const float* mine = hidden + (long long)blockIdx.x * HIDDEN;
    own.load([&](int i) { return mine[i]; }, feature_norm);
    finish_hidden(own, row, t == newest ? stream + (long long)a * HIDDEN : nullptr, eps);
}
