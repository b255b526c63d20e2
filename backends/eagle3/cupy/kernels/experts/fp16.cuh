// float16 as bit patterns, the tensor-core product of it, and MXFP4 numbers as operands of that product.
//
// Experts multiply in float16, not in bfloat16: a four-bit number is a float16 number but for a power of two, its smallest ones
// as subnormals, which the tensor core keeps, and all products of these are far above the smallest normal float32. In bfloat16
// they would lie below it. What an expert multiplies is a normed row, or the clamped output of its own gate and up rows: both
// lie well within the range of float16, and what leaves it becomes infinite and is found by the LM head's check.
#pragma once

typedef unsigned short fp16;

__device__ __forceinline__ fp16 to_fp16(float value) {
    fp16 rounded;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(rounded) : "f"(value));
    return rounded;
}

// Two values in one register, `low` in the lower half, as the tensor core's operands have them.
__device__ __forceinline__ unsigned pack_fp16(float low, float high) {
    unsigned packed;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

// Two products, of the lower halves and of the upper ones. Subnormal numbers are no zeros.
__device__ __forceinline__ unsigned product_fp16(unsigned a, unsigned b) {
    unsigned product;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
    return product;
}

// m16n8k16 with fragments as in mma.cuh: d = a · b + c.
__device__ __forceinline__ void mma_fp16(float (&d)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0,
                                         unsigned b1, float c0, float c1, float c2, float c3) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "f"(c0), "f"(c1), "f"(c2), "f"(c3));
}

// Eight MXFP4 numbers of a row, in pairs of neighbours, as float16 · 2^14.
struct Eight {
    unsigned pair[4];
};

// The inverse of what packing.py does. A number's bits, sign and magnitude, have their places in float16 at 15 and 11 … 9. Of
// each half of a word, the first pair's number stands there already, the second's three bits lower. Of the third and the
// fourth, magnitudes stand six and nine bits lower, and signs one and two: a product moves both at once. What it moves
// elsewhere, from the lower half into the upper one too, stays below the places of a magnitude, with all carries.
__device__ __forceinline__ Eight expanded(unsigned word) {
    const unsigned NUMBER = 0x8e008e00u, THIRD = 0x40384038u, FOURTH = 0x20072007u;
    return {{word & NUMBER, word << 3 & NUMBER, (word & THIRD) * (64 + 2) & NUMBER, (word & FOURTH) * (512 + 4) & NUMBER}};
}

// The scale that byte `Index` of `scales` stands for, as a float32: the byte is its exponent.
template <int Index>
__device__ __forceinline__ float scale_of(unsigned scales) {
    const unsigned EXPONENT = 0x7f800000u;
    return __uint_as_float((Index < 3 ? scales << (23 - 8 * Index) : scales >> 1) & EXPONENT);
}
