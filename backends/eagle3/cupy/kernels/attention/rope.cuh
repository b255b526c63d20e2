// Rotary position embedding of a head, in the half-split layout: elements i and i + HEAD_DIM / 2 are a pair. With
// HEAD_NORM_EPS, queries and keys get an RMSNorm of their own before it; without (0), nothing of that is compiled.
#pragma once
#include "bf16.cuh"
#include "block.cuh"

#ifndef HEAD_NORM_EPS
#define HEAD_NORM_EPS 0
#endif

const int HALF_DIM = HEAD_DIM / 2;

// Weights of the norms [2][HEAD_DIM]: of queries, then of keys.
__device__ __forceinline__ const bf16* norm_of_keys(const bf16* head_norms) { return head_norms + HEAD_DIM; }

// The norm of a head at `head`, HEAD_DIM numbers that are aligned to 16 bytes. Four neighbouring lanes add up its squares, in
// an order that depends on nothing else; the whole warp calls, for up to eight heads.
struct HeadNorm {
    const bf16* weight;
    float scale;

    __device__ __forceinline__ HeadNorm(const float* head, const bf16* weight) : weight(weight), scale(1) {
        if constexpr (HEAD_NORM_EPS > 0) {
            float squares = 0;
#pragma unroll
            for (int n = 0; n < HEAD_DIM / 16; ++n) {
                const float4 x = reinterpret_cast<const float4*>(head)[4 * n + threadIdx.x % 4];
                squares = fmaf(x.x, x.x, fmaf(x.y, x.y, fmaf(x.z, x.z, fmaf(x.w, x.w, squares))));
            }
            squares += __shfl_xor_sync(FULL_WARP, squares, 1);
            squares += __shfl_xor_sync(FULL_WARP, squares, 2);
            scale = rsqrtf(squares / HEAD_DIM + (float)HEAD_NORM_EPS);
        }
    }

    // Element `i`, which is `x`; and four from `i` on, a multiple of 4.
    __device__ __forceinline__ float of(float x, int i) const {
        if constexpr (HEAD_NORM_EPS > 0) return x * scale * to_float(weight[i]);
        return x;
    }
    __device__ __forceinline__ float4 of(float4 x, int i) const {
        if constexpr (HEAD_NORM_EPS > 0) {
            const uint2 w = *reinterpret_cast<const uint2*>(weight + i);
            x.x = x.x * scale * __uint_as_float(w.x << 16), x.y = x.y * scale * __uint_as_float(w.x & 0xffff0000u);
            x.z = x.z * scale * __uint_as_float(w.y << 16), x.w = x.w * scale * __uint_as_float(w.y & 0xffff0000u);
        }
        return x;
    }
};

// A pair, rotated: x · cos - y · sin, y · cos + x · sin.
__device__ __forceinline__ float2 rotated(float x, float y, float cosine, float sine) {
    return make_float2(x * cosine - y * sine, y * cosine + x * sine);
}

// Eight pairs, as bfloat16: elements i … i + 7 into `low`, i + HALF_DIM … into `high`. Pointers point at element i and are
// aligned to 16 bytes; `first` is i.
__device__ __forceinline__ void rotate_eight(uint4& low, uint4& high, const float* in, const float* cosine, const float* sine,
                                             const HeadNorm& norm, int first) {
    unsigned *to_low = &low.x, *to_high = &high.x;
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
        const float4 x = norm.of(*reinterpret_cast<const float4*>(in + i), first + i);
        const float4 y = norm.of(*reinterpret_cast<const float4*>(in + i + HALF_DIM), first + i + HALF_DIM);
        const float4 cos = *reinterpret_cast<const float4*>(cosine + i), sin = *reinterpret_cast<const float4*>(sine + i);
        const float2 a = rotated(x.x, y.x, cos.x, sin.x), b = rotated(x.y, y.y, cos.y, sin.y);
        const float2 c = rotated(x.z, y.z, cos.z, sin.z), d = rotated(x.w, y.w, cos.w, sin.w);
        to_low[i / 2] = pack_bf16(a.x, b.x);
        to_low[i / 2 + 1] = pack_bf16(c.x, d.x);
        to_high[i / 2] = pack_bf16(a.y, b.y);
        to_high[i / 2 + 1] = pack_bf16(c.y, d.y);
    }
}
