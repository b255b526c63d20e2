// The draft's next token and, at once, the input of its next step: the LM head's choice is mapped to a target id, its
// embedding is read, and joined by the hidden state. One block per active slot.
//
// drafts[slot][index] = target_ids[the index in choices[a]], which is cleared again; where `input` is given, input[a] =
// [norm(embed(token)), norm(hidden)], hidden being the draft's own: stream[a], or, for NORM_OUTPUT, its norm: `normed`[a],
// still to be divided by the root mean square that `squares`[a] tell.
//
// An embedding is the end of a chain of reads, and no cache holds it: the hidden state is normed meanwhile. The next kernel
// may start once all threads have asked for theirs: a product that fetches its weights as fast as memory allows would
// stand before them in the queue.
#include "argmax.cuh"
#include "dependent.cuh"
#include "draft_row.cuh"
#include "slots.cuh"

extern "C" __global__ __launch_bounds__(THREADS) void draft_token(int* drafts, bf16* input, float* stream, Choice* choices,
                                                                  int* fault, const int* target_ids, const bf16* normed,
                                                                  const float* squares, const bf16* embedding,
                                                                  const bf16* embedding_norm, const bf16* feature_norm,
                                                                  const int* active, const int* active_count, int index,
                                                                  float eps) {
    const int a = blockIdx.x;
    prefetch<THREADS>(target_ids, DRAFT_VOCAB * sizeof(int));
    if (input) prefetch_norms(embedding_norm, feature_norm);
    await_previous();
    const int count = *active_count, slot = active[a];
    const Choice best = choices[a];
    __syncthreads();  // all have read the choice, and asked for all three at once
    if (a >= count) return;
    // A choice that was taken already, as when this is timed alone, holds no index; what is read must be a token even so.
    const long long token = target_ids[min((unsigned)index_of(best), DRAFT_VOCAB - 1u)];
    HalfRow embedded, hidden;
    float* mine = stream + (long long)a * HIDDEN;
    if (input) {
        float scale = 1;
        if (NORM_OUTPUT) {
            float sum = 0;
            for (int i = threadIdx.x; i < HIDDEN / 8; i += THREADS) sum += squares[a * (HIDDEN / 8) + i];
            scale = rsqrtf(block_sum<THREADS>(sum) / HIDDEN + eps);
        }
        auto own = [&](int i) {
            return NORM_OUTPUT ? to_float(to_bf16(to_float(normed[(long long)a * HIDDEN + i]) * scale)) : mine[i];
        };
        hidden.load(own, feature_norm);
    }
    if (threadIdx.x == 0) {
        choices[a] = 0;
        drafts[slot * MAX_ROWS + index] = (int)token;
        if (!is_finite(best)) atomicOr(fault, DRAFT_NOT_FINITE);
    }
    if (!input) return;
    bf16* row = input + (long long)a * 2 * HIDDEN;
    load_embedding(embedded, embedding + token * HIDDEN, embedding_norm);
    finish_hidden(hidden, row, mine, eps);
    let_next_start();
    finish_embedding(embedded, row, eps);
}
