// The order in which filters keep the columns of a row: the larger logit first and, of equal ones, the lower column. A `Rank`
// holds both, so that no two columns of a row are equal: 32 bits of the logit above 18 of the column.
#pragma once
#include "argmax.cuh"

#define COLUMN_BITS 18
#define LAST_COLUMN ((1u << COLUMN_BITS) - 1)

typedef unsigned long long Rank;

__device__ __forceinline__ Rank rank_of(float logit, int column) {
    return (Rank)logit_of(choice(logit, 0)) << COLUMN_BITS | (LAST_COLUMN - (unsigned)column);
}

// The logit of a finite choice.
__device__ __forceinline__ float value_of(Choice best) {
    const unsigned ordered = logit_of(best);
    return __uint_as_float(ordered & 0x80000000u ? ordered ^ 0x80000000u : ~ordered);
}
