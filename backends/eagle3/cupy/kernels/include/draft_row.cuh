// One row of the draft's attention input, [norm(embedding), norm(hidden)], and the residual stream that goes around the layer.
// Each half is loaded and normed as soon as its input is known.
#pragma once
#include "norm.cuh"
#include "prefetch.cuh"

typedef NormRow<HIDDEN, THREADS> HalfRow;

__device__ __forceinline__ void prefetch_norms(const bf16* embedding_norm, const bf16* feature_norm) {
    prefetch<THREADS>(embedding_norm, HIDDEN * sizeof(bf16));
    prefetch<THREADS>(feature_norm, HIDDEN * sizeof(bf16));
}

__device__ __forceinline__ void load_embedding(HalfRow& half, const bf16* embedding, const bf16* norm) {
    half.load([&](int i) { return to_float(embedding[i]); }, norm);
}

__device__ __forceinline__ void finish_embedding(const HalfRow& half, bf16* input, float eps) {
    half.finish(eps, [&](int i, float, bf16 normed) { input[i] = normed; });
}

// `half` may have been loaded from `stream` itself: each thread writes only the elements that it alone has read.
__device__ __forceinline__ void finish_hidden(const HalfRow& half, bf16* input, float* stream, float eps) {
    half.finish(eps, [&](int i, float x, bf16 normed) {
        input[HIDDEN + i] = normed;
        if (stream) stream[i] = NORM_BEFORE_RESIDUAL ? to_float(normed) : x;
    });
}
