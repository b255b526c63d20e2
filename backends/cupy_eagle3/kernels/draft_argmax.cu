// The draft's next token and, at once, the input of its next step: argmax over the draft vocabulary, the map to a target id,
// the embedding of that token, norms. One block per active slot.
//
// drafts[slot][index] = target_ids[argmax(logits[a])], ties to the lowest; where `input` is given, input[a] =
// [norm(embed(token)), norm(hidden)], hidden being the draft's own: stream[a], or, for NORM_OUTPUT, its norm: `normed`[a],
// still to be divided by the root mean square that `squares`[a] tell.
#include "argmax.cuh"
#include "dependent.cuh"
#include "draft_row.cuh"
#include "slots.cuh"

extern "C" __global__ __launch_bounds__(THREADS) void draft_argmax(int* drafts, bf16* input, float* stream, int* fault,
                                                                   const float* logits, const int* target_ids,
                                                                   const bf16* normed, const float* squares,
                                                                   const bf16* embedding,
                                                                   const bf16* embedding_norm, const bf16* feature_norm,
                                                                   const int* active, const int* active_count, int index,
                                                                   float eps) {
    const int a = blockIdx.x;
    prefetch<THREADS>(target_ids, DRAFT_VOCAB * sizeof(int));
    if (input) prefetch_norms(embedding_norm, feature_norm);
    await_previous();
    if (a >= *active_count) return;
    const Choice best = block_max<THREADS>(best_of<DRAFT_VOCAB, THREADS>(logits + (long long)a * DRAFT_VOCAB, threadIdx.x));
    const long long token = target_ids[index_of(best)];
    if (threadIdx.x == 0) {
        drafts[active[a] * MAX_ROWS + index] = (int)token;
        if (!is_finite(best)) atomicOr(fault, DRAFT_NOT_FINITE);
    }
    if (!input) return;
    float* mine = stream + (long long)a * HIDDEN;
    float scale = 1;
    if (NORM_OUTPUT) {
        float sum = 0;
        for (int i = threadIdx.x; i < HIDDEN / 8; i += THREADS) sum += squares[a * (HIDDEN / 8) + i];
        scale = rsqrtf(block_sum<THREADS>(sum) / HIDDEN + eps);
    }
    auto hidden = [&](int i) {
        return NORM_OUTPUT ? to_float(to_bf16(to_float(normed[(long long)a * HIDDEN + i]) * scale)) : mine[i];
    };
    draft_row(input + (long long)a * 2 * HIDDEN, mine, embedding + token * HIDDEN, hidden, embedding_norm, feature_norm,
              eps);
}
