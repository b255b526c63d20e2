// E4M3 as bit patterns (a sign, four bits of exponent, three of mantissa; no infinities), and the scales of a cache in it. The
// definition is that of `backends/eagle3/lib/kv/fp8.py`, bit for bit.
//
// SCALE_POSITIONS positions of a head share a scale, a power of two that is made of the first of them alone. So what is cached
// of a position depends on nothing behind it, a rejected draft among that. A number that is not finite becomes NaN, and so
// comes to light in the logits.
//
// Kernels are compiled with -ftz=true (CuPy asks for it): a float32 below 2^-126 is zero to them, as operand and as result.
#pragma once
#include "fp16.cuh"

const int SCALE_POSITIONS = 16;
const unsigned FP8_NAN = 0x7f;
#define FP8_LARGEST 448.0f
#define FP8_LEAST 1.17549435e-38f  // 2^-126
#define FP8_HEADROOM 64.0f         // how many times as large as in the first position a number may be

static_assert(BLOCK == 4 * SCALE_POSITIONS, "a cache block must have the positions of four scales");

// Where the scale of a position's key lies among those of a layer, before that of its value.
__device__ __forceinline__ long long scale_place(int block, int kv_head, int position) {
    return 2 * (((long long)block * KV_HEADS + kv_head) * (BLOCK / SCALE_POSITIONS) + position % BLOCK / SCALE_POSITIONS);
}

// ---- scales -----------------------------------------------------------------------------------------------------------

// 2^⌈log2(share · largest)⌉, at least the power of two with the bits `smallest`; 1 for zeros and what counts as one, below
// 2^-126.
__device__ __forceinline__ float power_above(float largest, float share, unsigned smallest) {
    const unsigned INFINITE = 0x7f800000u, MANTISSA = 0x007fffffu;
    const unsigned bits = __float_as_uint(largest * share);
    const unsigned power = (bits + MANTISSA) & INFINITE;
    if (!(largest >= FP8_LEAST) || bits >= INFINITE) return 1;  // what is not finite needs no scale for its code
    return __uint_as_float(power > smallest ? power : smallest);
}

// The scale of positions whose first has numbers up to `largest`: 2^⌈log2(64 / 448 · largest)⌉, at least 2^-126.
__device__ __forceinline__ float scale_of(float largest) {
    return power_above(largest, FP8_HEADROOM / FP8_LARGEST, 0x00800000u);
}

// Whether it is one that `power_above` makes, so that its inverse is a normal number, too.
__device__ __forceinline__ bool sound(float scale) { return __float_as_uint(scale) - 0x00800000u <= 0x7e000000u; }

// Of a power of two, the inverse.
__device__ __forceinline__ float inverse(float scale) { return __uint_as_float(0x7f000000u - __float_as_uint(scale)); }

// Of a power of two, its logarithm.
__device__ __forceinline__ int exponent_of(float scale) { return (int)(__float_as_uint(scale) >> 23) - 127; }

// ---- numbers to codes -------------------------------------------------------------------------------------------------

// To nearest, ties to even, ±448 for what lies beyond: by the bits of |x|.
__device__ __forceinline__ unsigned code_by_bits(float x) {
    const unsigned sign = __float_as_uint(x) >> 24 & 0x80u;
    const float size = fminf(__uint_as_float(__float_as_uint(x) & 0x7fffffffu), FP8_LARGEST);
    // Below 2^-6 numbers are multiples of 2^-9. A sum with 2^23 is rounded to whole ones.
    if (size < 0.015625f) return sign | (__float_as_uint(size * 512.0f + 8388608.0f) & 0xfu);
    const unsigned bits = __float_as_uint(size), REBASE = (127 - 7) << 3;
    return sign | (((bits + 0x7ffffu + (bits >> 20 & 1u)) >> 20) - REBASE);
}

#if __CUDA_ARCH__ >= 890
__device__ __forceinline__ unsigned code_by_hardware(float x) {
    unsigned short pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(x));
    return pair;
}
#endif

__device__ __forceinline__ unsigned char fp8_code(float x) {
    if ((__float_as_uint(x) & 0x7f800000u) == 0x7f800000u) return FP8_NAN;
#if __CUDA_ARCH__ >= 890
    return code_by_hardware(x);
#else
    return code_by_bits(x);
#endif
}

// ---- codes to numbers -------------------------------------------------------------------------------------------------

// As a float32. Codes below 2^-6 are multiples of 2^-9; of all others, exponent and mantissa need new places alone.
__device__ __forceinline__ float value_of(unsigned code) {
    const unsigned bits = code & 0x7fu, REBASE = (127u - 7u) << 23;
    if (bits == 0x7fu) return __uint_as_float(0x7fffffffu);
    const float size = bits < 8 ? (float)bits * 0.001953125f : __uint_as_float((bits << 20) + REBASE);
    return __uint_as_float(__float_as_uint(size) | (code & 0x80u) << 24);
}

// Four codes as float16, in which each is exact: those of the word's lower two bytes, and those of its upper two.
struct FourNumbers {
    unsigned low, high;
};

// Two codes, each the upper byte of a half. One bit lower, exponent and mantissa are in their places, of a number that is
// smaller by 2^8; a subnormal one stands for a subnormal one. NaN has no such place.
__device__ __forceinline__ unsigned two_by_bits(unsigned codes) {
    const unsigned sizes = codes & 0x7f007f00u, nan = (sizes + 0x01000100u) >> 15 & 0x00010001u;
    return product_fp16(sizes >> 1, 0x5c005c00u) | (codes & 0x80008000u) | nan * 0x7fffu;
}

__device__ __forceinline__ FourNumbers four_by_bits(unsigned word) {
    return {two_by_bits(__byte_perm(word, 0, 0x1404)), two_by_bits(__byte_perm(word, 0, 0x3424))};
}

#if __CUDA_ARCH__ >= 890
__device__ __forceinline__ FourNumbers four_by_hardware(unsigned word) {
    FourNumbers four;
    asm("{ .reg .b16 low, high; mov.b32 {low, high}, %2; cvt.rn.f16x2.e4m3x2 %0, low; cvt.rn.f16x2.e4m3x2 %1, high; }"
        : "=r"(four.low), "=r"(four.high)
        : "r"(word));
    return four;
}
#endif

__device__ __forceinline__ FourNumbers dequantised(unsigned word) {
#if __CUDA_ARCH__ >= 890
    return four_by_hardware(word);
#else
    return four_by_bits(word);
#endif
}
