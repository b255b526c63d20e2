// NVFP4 as bit patterns: E2M1 (a sign, two bits of exponent, one of mantissa), 16 elements of a head under a scale in E4M3,
// beside a power of two per slot, head and kind (keys, values), the outer scale. The definition is that of
// `backends/eagle3/lib/kv/nvfp4.py`, bit for bit. The outer scale is made of position 0 alone and the others of their own
// position, so what is cached of a position depends on nothing behind it.
//
// A block of 16 elements with a number that is not finite gets a NaN for its scale, and so comes to light in the logits.
//
// Where they lie: the pages of a cache block and head have as many bytes in the order in which the lanes of a warp of
// attention take them, as a whole cache block has.
//   codes    SIXTEENS sixteens per lane, 8 bytes each, of 16 codes that a lane multiplies one after the other. Sixteen
//            8 · wide + i of lane (g, c) are elements 64 · wide + 16c … + 15 of the key at 16 · (g / 2) + 2 · i + g % 2, which
//            share a scale; or sixteen n positions 16c … 16c + 15 of element 8n + g of the values. Two neighbouring ones of
//            every lane are neighbours, so that a warp loads 16 bytes per lane, and 512 in a row.
//   scales   of each lane SIXTEENS bytes of keys, those of its sixteens, and as many of values; 16 bytes of every lane are
//            neighbours. Those of values are of four positions' sixteenths: of block m and position 16c + j, byte 16m + j
//            of what the eight lanes c have together.
//   outer    behind the scales, of keys and of values as float32, and 8 bytes that nobody reads. A slot has those of its
//            first cache block.
#pragma once
#include "fp16.cuh"
#include "fp8.cuh"

static_assert(HEAD_DIM == 64 || HEAD_DIM == 128, "HEAD_DIM must be 64 or 128");

const int SIXTEENS = HEAD_DIM / 8;                  // of a lane
const int CODE_BYTES = BLOCK * HEAD_DIM / 2;        // of the keys, or of the values, of a cache block and head
const int SCALE_BYTES = 2 * BLOCK * HEAD_DIM / 16;  // of both
const int SCALE_STRIDE = SCALE_BYTES + 16;          // with the outer scales
#define NVFP4_LARGEST 2688.0f                       // 6 · 448
#define NVFP4_HEADROOM 256.0f                       // how many times as large as at position 0 a number may be
const unsigned LEAST_OUTER = (127u - 112u) << 23;   // 2^-112: a quarter of the least scale is then a normal number
#define LEAST_SCALE 0.001953125f                    // 2^-9, code 1: of a block of zeros

// ---- places -----------------------------------------------------------------------------------------------------------

// Of a code: its word among those of a cache block's page, and which of the eight codes of that word it is.
struct CodePlace {
    int word, index;
};

__device__ __forceinline__ CodePlace in_sixteen(int n, int lane, int k) {
    return {(n / 2 * 32 + lane) * 4 + n % 2 * 2 + k / 8, k % 8};
}

__device__ __forceinline__ CodePlace key_code(int place, int element) {
    const int lane = place / 16 * 8 + place % 2 * 4 + element % 64 / 16;
    return in_sixteen(element / 64 * 8 + place % 16 / 2, lane, element % 16);
}

__device__ __forceinline__ CodePlace value_code(int place, int element) {
    return in_sixteen(element / 8, element % 8 * 4 + place / 16, place % 16);
}

// Of the scale of the block of 16 elements that begins at `element`.
__device__ __forceinline__ int scale_byte(int lane, int n) { return n / 16 * 512 + lane * 16 + n % 16; }

__device__ __forceinline__ int key_scale(int place, int element) {
    const int lane = place / 16 * 8 + place % 2 * 4 + element % 64 / 16;
    return scale_byte(lane, element / 64 * 8 + place % 16 / 2);
}

__device__ __forceinline__ int value_scale(int place, int element) {
    const int n = element + place % 16;
    return scale_byte(n / SIXTEENS * 4 + place / 16, SIXTEENS + n % SIXTEENS);
}

// A code at its place in a word, as `expanded` of fp16.cuh finds it.
__device__ __forceinline__ unsigned placed(unsigned code, int index) {
    const int pair = index / 2, sign = 0xdecf >> 4 * pair & 15;
    return ((code & 7u) << (9 - 3 * pair) | (code >> 3) << sign) << 16 * (index % 2);
}

// The code at place `index` of a word.
__device__ __forceinline__ unsigned code_at(unsigned word, int index) {
    const int pair = index / 2, sign = 0xdecf >> 4 * pair & 15;
    word >>= 16 * (index % 2);
    return (word >> (9 - 3 * pair) & 7u) | (word >> sign & 1u) << 3;
}

// ---- numbers to codes -------------------------------------------------------------------------------------------------

// The bits of |x|: as whole numbers they are in order, and above all finite ones where x is not finite.
__device__ __forceinline__ unsigned size_bits(float x) { return __float_as_uint(x) & 0x7fffffffu; }

// The outer scale of a head whose largest number at position 0 has the size `largest`: 2^⌈log2(256 / 2688 · largest)⌉, at
// least 2^-112; 1 for zeros and what counts as one, below 2^-126, and for what is not finite.
__device__ __forceinline__ float outer_scale(unsigned largest) {
    return power_above(__uint_as_float(largest), NVFP4_HEADROOM / NVFP4_LARGEST, LEAST_OUTER);
}

// What the numbers of a block are measured with.
struct BlockScale {
    unsigned code;  // E4M3
    float step;     // its value times the outer scale, exactly

    __device__ __forceinline__ BlockScale(unsigned largest, float outer) {
        const float wanted = __uint_as_float(largest) * (1.0f / 6.0f) * inverse(outer);
        code = largest >= 0x7f800000u ? FP8_NAN : fp8_code(fminf(fmaxf(wanted, LEAST_SCALE), FP8_LARGEST));
        step = value_of(code) * outer;
    }

    // The nearest E2M1 to x / step; the even one of two, and ±6 for what lies beyond.
    __device__ __forceinline__ unsigned code_of(float x) const {
        const float size = fabsf(x);
        return (unsigned)(size > 0.25f * step) + (size >= 0.75f * step) + (size > 1.25f * step) + (size >= 1.75f * step) +
               (size > 2.5f * step) + (size >= 3.5f * step) + (size > 5.0f * step) + (__float_as_uint(x) >> 31 << 3);
    }

    __device__ __forceinline__ float number(unsigned code) const {
        const unsigned size = code & 7u;
        const float value = size < 2 ? 0.5f * size : __uint_as_float((size << 22) + (126u << 23));
        return __uint_as_float(__float_as_uint(value) | code >> 3 << 31) * step;
    }
};

// ---- scales as numbers ------------------------------------------------------------------------------------------------

// Not zero where one of four scales is zero, NaN or negative: codes are 1 … 126.
__device__ __forceinline__ unsigned unsound_among(unsigned four) {
    return (four | (four + 0x01010101u) | (four - 0x01010101u)) & 0x80808080u;
}

// Two scales as float16 / 2^7, from the upper bytes of the halves of `pair`. One bit lower, exponent and mantissa are in their
// places, of a number that is smaller by 2^8; a subnormal one stands for a subnormal one.
__device__ __forceinline__ unsigned scales_fp16(unsigned pair) { return product_fp16(pair >> 1, 0x78007800u); }
