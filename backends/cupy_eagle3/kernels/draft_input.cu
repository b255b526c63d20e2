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
    prefetch_norms(embedding_norm, feature_norm);
    await_previous();
    const int count = *active_count, slot = active[a];  // one trip to memory for both
    if (a >= count) return;
    const int newest = counts[slot] - 1;
    const long long token = pending[slot * MAX_ROWS + min(t, newest)];
    const float* mine = hidden + (long long)blockIdx.x * HIDDEN;
    draft_row(input + (long long)blockIdx.x * 2 * HIDDEN, t == newest ? stream + (long long)a * HIDDEN : nullptr,
              embedding + token * HIDDEN, [&](int i) { return mine[i]; }, embedding_norm, feature_norm, eps);
}
