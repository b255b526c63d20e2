// Rotary position embedding of a head, in the half-split layout: elements i and i + HEAD_DIM / 2 are a pair.
#pragma once
#include "bf16.cuh"

const int HALF_DIM = HEAD_DIM / 2;

// A pair, rotated: x · cos - y · sin, y · cos + x · sin.
__device__ __forceinline__ float2 rotated(float x, float y, float cosine, float sine) {
    return make_float2(x * cosine - y * sine, y * cosine + x * sine);
}

// Eight pairs, as bfloat16: elements i … i + 7 into `low`, i + HALF_DIM … into `high`. All pointers point at element i and
// are aligned to 16 bytes.
__device__ __forceinline__ void rotate_eight(uint4& low, uint4& high, const float* in, const float* cosine, const float* sine) {
    unsigned *to_low = &low.x, *to_high = &high.x;
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
        const float4 x = *reinterpret_cast<const float4*>(in + i), y = *reinterpret_cast<const float4*>(in + i + HALF_DIM);
        const float4 cos = *reinterpret_cast<const float4*>(cosine + i), sin = *reinterpret_cast<const float4*>(sine + i);
        const float2 a = rotated(x.x, y.x, cos.x, sin.x), b = rotated(x.y, y.y, cos.y, sin.y);
        const float2 c = rotated(x.z, y.z, cos.z, sin.z), d = rotated(x.w, y.w, cos.w, sin.w);
        to_low[i / 2] = pack_bf16(a.x, b.x);
        to_low[i / 2 + 1] = pack_bf16(c.x, d.x);
        to_high[i / 2] = pack_bf16(a.y, b.y);
        to_high[i / 2 + 1] = pack_bf16(c.y, d.y);
    }
}
