// A logit and its index as one integer whose maximum is the greedy choice: the largest logit, the lowest index of equals.
// Maxima of integers do not depend on the order in which they are taken.
#pragma once

#define NOT_FINITE 0xffffffffu

typedef unsigned long long Choice;

__device__ __forceinline__ Choice choice(float logit, int index) {
    unsigned bits = __float_as_uint(logit);
    unsigned ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    if ((bits & 0x7f800000u) == 0x7f800000u) ordered = NOT_FINITE;  // NaN or infinity must come to light
    if (bits == 0x80000000u) ordered = 0x80000000u;                 // -0 equals 0
    return (Choice)ordered << 32 | (0xffffffffu - (unsigned)index);
}

__device__ __forceinline__ int index_of(Choice best) { return (int)(0xffffffffu - (unsigned)best); }

// Bits that are in the order of the logits.
__device__ __forceinline__ unsigned logit_of(Choice best) { return (unsigned)(best >> 32); }

__device__ __forceinline__ bool is_finite(Choice best) { return logit_of(best) != NOT_FINITE; }

// The best so far, or an older one, since others raise it meanwhile: what does not beat this need not be compared again.
// Volatile, so that it is read where atomic operations work, in the L2 cache, and not before a kernel has waited.
__device__ __forceinline__ Choice so_far(const Choice* best) { return *static_cast<const volatile Choice*>(best); }
