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

// The best of logits[first], logits[first + Step], … before Count. Up to 16 are asked for at once: one trip to memory each
// would be the most of what an argmax takes.
template <int Count, int Step>
__device__ __forceinline__ Choice best_of(const float* logits, int first) {
    const int EACH = (Count + Step - 1) / Step, BATCH = EACH < 16 ? EACH : 16;
    Choice best = 0;
    for (int from = first; from < Count; from += BATCH * Step) {
        float in[BATCH];
#pragma unroll
        for (int n = 0; n < BATCH; ++n) in[n] = from + n * Step < Count ? logits[from + n * Step] : 0;
#pragma unroll
        for (int n = 0; n < BATCH; ++n)
            if (from + n * Step < Count) best = max(best, choice(in[n], from + n * Step));
    }
    return best;
}
