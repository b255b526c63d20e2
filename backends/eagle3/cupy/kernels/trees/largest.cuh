// The largest choice of a warp, and numbers as bits that compare as they do. A choice (argmax.cuh) is two integers, the second
// of which matters where the first are equal: a warp takes the maximum of each by one instruction.
#pragma once
#include "argmax.cuh"
#include "block.cuh"

__device__ __forceinline__ Choice warp_largest(Choice value) {
    const unsigned high = __reduce_max_sync(FULL_WARP, logit_of(value));
    const unsigned low = __reduce_max_sync(FULL_WARP, logit_of(value) == high ? (unsigned)value : 0u);
    return (Choice)high << 32 | low;
}

// The number whose bits `logit_of` gives; NaN where it was not finite.
__device__ __forceinline__ float number_of(unsigned ordered) {
    return __uint_as_float(ordered & 0x80000000u ? ordered ^ 0x80000000u : ~ordered);
}

// Next of `Lists` lists of a warp, each in falling order, lane n's being list n: the largest that none has taken yet, to every
// lane; 0 where there is none. `taken`: how many of the lane's own list were.
template <int Lists, int Length, typename At>
__device__ __forceinline__ Choice take_next(int& taken, At at) {
    const int lane = threadIdx.x % 32;
    const Choice own = lane < Lists && taken < Length ? at(lane, taken) : 0;
    const Choice largest = warp_largest(own);
    taken += own == largest;
    return largest;
}
