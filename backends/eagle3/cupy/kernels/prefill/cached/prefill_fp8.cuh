// Keys, rotated, and values of a prompt into a cache in E4M3 (fp8.cuh). In the packed projection they become what the cache
// holds of them: the prompt's own rows attend over what later steps attend over.
//
// One block per cache block (blockIdx.x) and key/value head (blockIdx.y). A warp has the keys, or the values, of 16 positions,
// which share a scale; a lane has every 32nd element of the head.
#pragma once
#include "fp8.cuh"

static_assert(THREADS == 2 * 32 * BLOCK / SCALE_POSITIONS, "THREADS: two warps for every scale of a cache block");

struct PrefillFp8Arguments {           // launched on [(positions - 1) / BLOCK + 1, KV_HEADS]
    bf16* qkv;                         // [positions, (HEADS + 2 * KV_HEADS) * HEAD_DIM]
    unsigned char *k_pages, *v_pages;  // [PAGES, KV_HEADS, BLOCK, HEAD_DIM], [PAGES, KV_HEADS, HEAD_DIM, BLOCK]
    float* scales;                     // [PAGES, KV_HEADS, BLOCK / 16, 2]
    const long long* blocks;           // [(positions + BLOCK - 1) / BLOCK]
    int positions;
};

// The largest absolute number of the row whose every 32nd element, from the lane on, is at `row`.
__device__ __forceinline__ float largest_of(const bf16* row) {
    float largest = 0;
#pragma unroll
    for (int m = 0; m < HEAD_DIM / 32; ++m) largest = fmaxf(largest, fabsf(to_float(row[32 * m])));
#pragma unroll
    for (int step = 16; step; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(FULL_WARP, largest, step));
    return largest;
}

__device__ __forceinline__ void quantise_sixteen(const PrefillFp8Arguments& args) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = warp / 2 * SCALE_POSITIONS, kv_head = blockIdx.y;
    const bool values = warp % 2 == 1;
    const long long block = args.blocks[blockIdx.x], position = (long long)blockIdx.x * BLOCK + first;
    bf16* row = args.qkv + position * WIDTH + (HEADS + (values ? KV_HEADS : 0) + kv_head) * HEAD_DIM + lane;
    const float scale = position < args.positions ? scale_of(largest_of(row)) : 1, factor = inverse(scale);
    if (lane == 0) args.scales[scale_place((int)block, kv_head, first) + values] = scale;
    const long long page = (block * KV_HEADS + kv_head) * BLOCK * HEAD_DIM;
#pragma unroll 1
    for (int m = 0; m < HEAD_DIM / 32; ++m) {
        const int element = lane + 32 * m;
        bf16 numbers[SCALE_POSITIONS];
#pragma unroll
        for (int t = 0; t < SCALE_POSITIONS; ++t)
            numbers[t] = position + t < args.positions ? row[(long long)t * WIDTH + 32 * m] : (bf16)0;
        unsigned words[SCALE_POSITIONS / 4] = {};
#pragma unroll
        for (int t = 0; t < SCALE_POSITIONS; ++t) {
            const unsigned code = fp8_code(to_float(numbers[t]) * factor);
            words[t / 4] |= code << 8 * (t % 4);
            if (position + t < args.positions) row[(long long)t * WIDTH + 32 * m] = to_bf16(value_of(code) * scale);
            if (!values) args.k_pages[page + (first + t) * HEAD_DIM + element] = (unsigned char)code;
        }
        if (values)
            *reinterpret_cast<uint4*>(args.v_pages + page + element * BLOCK + first) =
                make_uint4(words[0], words[1], words[2], words[3]);
    }
}
