// bfloat16 as bit patterns. Rounding is to nearest, ties to even, and is written here alone, so that every kernel rounds alike.
#pragma once

typedef unsigned short bf16;

__device__ __forceinline__ float to_float(bf16 value) { return __uint_as_float((unsigned)value << 16); }

__device__ __forceinline__ bf16 to_bf16(float value) {
    bf16 rounded;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(rounded) : "f"(value));
    return rounded;
}

// Two values in one register, `low` in the lower half, as the tensor core's operands have them.
__device__ __forceinline__ unsigned pack_bf16(float low, float high) {
    unsigned packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}
