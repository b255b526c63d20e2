// Ownership of cache blocks. Free blocks lie on a stack; `owner` tells which slot may write to a block.
#pragma once

#define FREE (-1)

// An exclusive prefix sum: the sum of `values` before `index` (x), and of all Count values (y).
template <int Count>
__device__ __forceinline__ int2 sum_before(const int (&values)[Count], int index) {
    int before = 0, all = 0;
    for (int i = 0; i < Count; ++i) {
        if (i == index) before = all;
        all += values[i];
    }
    return make_int2(before, all);
}

__device__ __forceinline__ int blocks_for(int positions) { return (positions + BLOCK - 1) / BLOCK; }
