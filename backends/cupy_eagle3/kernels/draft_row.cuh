// One row of the draft's attention input, [norm(embedding), norm(hidden)], and the stream that goes around the layer.
#pragma once
#include "dependent.cuh"
#include "norm.cuh"
#include "prefetch.cuh"

__device__ __forceinline__ void prefetch_norms(const bf16* embedding_norm, const bf16* feature_norm) {
    prefetch<THREADS>(embedding_norm, HIDDEN * sizeof(bf16));
    prefetch<THREADS>(feature_norm, HIDDEN * sizeof(bf16));
}

// The next kernel may start once the embedding, which no cache holds, is here: a product that fetches its weights as fast as
// memory allows would stand before it in the queue. Norms' weights are asked for before they are needed: `prefetch_norms`.
//
// `hidden(i)` may read `stream`: each thread writes only the elements that it alone reads, after it has read them.
template <typename Hidden>
__device__ __forceinline__ void draft_row(bf16* input, float* stream, const bf16* embedding, Hidden hidden,
                                          const bf16* embedding_norm, const bf16* feature_norm, float eps) {
    norm_row<HIDDEN, THREADS>([&](int i) { return to_float(embedding[i]); }, embedding_norm, eps,
                              [&](int i, float, bf16 normed) { input[i] = normed; });
    let_next_start();
    norm_row<HIDDEN, THREADS>(hidden, feature_norm, eps, [&](int i, float x, bf16 normed) {
        input[HIDDEN + i] = normed;
        if (stream) stream[i] = NORM_BEFORE_RESIDUAL ? to_float(normed) : x;
    });
}
