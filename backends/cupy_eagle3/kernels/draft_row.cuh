// One row of the draft's attention input, [norm(embedding), norm(hidden)], and the stream that goes around the layer.
#pragma once
#include "norm.cuh"

// `hidden(i)` may read `stream`: each thread writes only the elements that it alone reads, after the last reduction.
template <typename Hidden>
__device__ __forceinline__ void draft_row(bf16* input, float* stream, const bf16* embedding, Hidden hidden,
                                          const bf16* embedding_norm, const bf16* feature_norm, float eps) {
    norm_row<HIDDEN, THREADS>(input, [&](int i) { return to_float(embedding[i]); }, embedding_norm, eps);
    norm_row<HIDDEN, THREADS>(input + HIDDEN, hidden, feature_norm, eps);
    if (!stream) return;
    for (int i = threadIdx.x; i < HIDDEN; i += THREADS)
        stream[i] = NORM_BEFORE_RESIDUAL ? to_float(input[HIDDEN + i]) : hidden(i);
}
