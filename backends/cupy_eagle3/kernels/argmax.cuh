// A logit and its index as one integer whose maximum is the greedy choice: the largest logit, the lowest index of equals.
// Maxima of integers do not depend on the order in which they are taken.
#pragma once

#define NOT_FINITE 0xffffffffu

typedef unsigned long long Choice;

__device__ __forceinline__ Choice choice(float logit, int index) {
    unsigned bits = __float_as_uint(logit);
    unsigned ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    if ((bits & 0x7f800000u) == 0x7f800000u) ordered = NOT_FINITE;  // NaN or infinity must come to light
    if (bits == 0x80000000u) ordered = 0x80000000u;                // -0 equals 0
    return (Choice)ordered << 32 | (0xffffffffu - (unsigned)index);
}

__device__ __forceinline__ int index_of(Choice best) { return (int)(0xffffffffu - (unsigned)best); }

__device__ __forceinline__ bool is_finite(Choice best) { return (unsigned)(best >> 32) != NOT_FINITE; }
