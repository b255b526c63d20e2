// The clamped SwiGLU of an expert: gate · σ(ALPHA · gate) · (up + 1), with gate at most LIMIT and up within ±LIMIT.
#pragma once

// As torch clamps: what is no number stays none.
__device__ __forceinline__ float at_most(float x, float limit) { return x > limit ? limit : x; }
__device__ __forceinline__ float at_least(float x, float limit) { return x < limit ? limit : x; }

// Fast exponential and quotient: their errors are some hundredths of what rounding to 16 bits may be off by.
__device__ __forceinline__ float sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }

__device__ __forceinline__ float clamped_swiglu(float gate, float up) {
    const float MOST = LIMIT, SLOPE = ALPHA;
    gate = at_most(gate, MOST);
    up = at_least(at_most(up, MOST), -MOST);
    return gate * sigmoid(gate * SLOPE) * (up + 1.0f);
}
