// The argmax of a row as a maximum of integers: a `Choice` holds a logit and its index, and the largest choice is the greedy
// one, of the largest logit and, among equal logits, of the lowest index. Unlike a sum, a maximum does not depend on the order
// in which it is taken, so atomic operations may take it.
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

// The logit as bits that compare as unsigned integers in the order of the logits.
__device__ __forceinline__ unsigned logit_of(Choice best) { return (unsigned)(best >> 32); }

__device__ __forceinline__ bool is_finite(Choice best) { return logit_of(best) != NOT_FINITE; }

// The best choice so far. Other blocks may raise it meanwhile, so this may be an older one; what does not beat it need not
// be compared again. Volatile, so that it is read where atomic operations work, in the L2 cache, and not before a kernel has
// waited for the one before it.
__device__ __forceinline__ Choice so_far(const Choice* best) { return *static_cast<const volatile Choice*>(best); }
