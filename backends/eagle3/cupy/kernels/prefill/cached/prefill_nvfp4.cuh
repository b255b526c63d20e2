// Keys, rotated, and values of a prompt into a cache in NVFP4 (nvfp4.cuh). In the packed projection they become what the cache
// holds of them: the prompt's own rows attend over what later steps attend over.
//
// First the outer scales of position 0, before what stands there changes: one block per key/value head, with a warp for keys
// and one for values. Then one block per cache block (blockIdx.x) and key/value head (blockIdx.y): a thread makes codes of 16
// elements of a position at a time, those of values in shared memory, where others take them by element.
#pragma once
#include "eights.cuh"
#include "nvfp4.cuh"

const int KIND_BLOCKS = BLOCK * HEAD_DIM / 16;  // blocks of 16 elements of the keys, or of the values

struct PrefillNvfp4Arguments {         // launched on [(positions - 1) / BLOCK + 1, KV_HEADS]
    bf16* qkv;                         // [positions, (HEADS + 2 * KV_HEADS) * HEAD_DIM]
    unsigned char *k_pages, *v_pages;  // [PAGES, KV_HEADS, HEAD_DIM / 16, 32, 16]
    unsigned char* scales;             // [PAGES, KV_HEADS, 8 * HEAD_DIM + 16]
    const long long* blocks;           // [(positions + BLOCK - 1) / BLOCK]
    int positions;
};

__device__ __forceinline__ bf16* row_of(const PrefillNvfp4Arguments& args, long long position, bool values) {
    return args.qkv + position * WIDTH + (HEADS + (values ? KV_HEADS : 0) + blockIdx.y) * HEAD_DIM;
}

__device__ __forceinline__ float* outer_place(const PrefillNvfp4Arguments& args, bool values) {
    unsigned char* page = args.scales + (args.blocks[0] * KV_HEADS + blockIdx.y) * SCALE_STRIDE;
    return reinterpret_cast<float*>(page + SCALE_BYTES) + values;
}

__device__ __forceinline__ void make_outer(const PrefillNvfp4Arguments& args) {
    const int lane = threadIdx.x % 32;
    const bool values = threadIdx.x / 32 == 1;
    const bf16* row = row_of(args, 0, values);
    unsigned largest = 0;
#pragma unroll
    for (int i = lane; i < HEAD_DIM; i += 32) largest = max(largest, size_bits(to_float(row[i])));
    largest = __reduce_max_sync(FULL_WARP, largest);
    if (lane == 0) *outer_place(args, values) = outer_scale(largest);
}

// Codes of the block of 16 elements from `element` on of the key or value at `place` of the cache block, a byte each, and their
// scale; what the projection has of them becomes what they stand for.
struct Coded {
    unsigned codes[4] = {};
    unsigned scale;

    __device__ __forceinline__ unsigned of(int i) const { return codes[i / 4] >> 8 * (i % 4) & 15u; }

    __device__ __forceinline__ Coded(const PrefillNvfp4Arguments& args, float outer, int place, int element, bool values) {
        const long long position = (long long)blockIdx.x * BLOCK + place;
        uint4* at = reinterpret_cast<uint4*>(row_of(args, position, values) + element);
        const bool inside = position < args.positions;
        float numbers[2][8];
        unsigned largest = 0;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            unpack(numbers[half], inside ? at[half] : make_uint4(0, 0, 0, 0));
#pragma unroll
            for (int i = 0; i < 8; ++i) largest = max(largest, size_bits(numbers[half][i]));
        }
        const BlockScale unit(largest, outer);
        scale = unit.code;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const unsigned code = unit.code_of(numbers[half][i]);
                codes[2 * half + i / 4] |= code << 8 * (i % 4);
                numbers[half][i] = unit.number(code);
            }
            if (inside) at[half] = packed(numbers[half]);
        }
    }
};

__device__ __forceinline__ void quantise_block(const PrefillNvfp4Arguments& args) {
    alignas(4) __shared__ unsigned char of_values[BLOCK][HEAD_DIM + 4];
    const long long page = args.blocks[blockIdx.x] * KV_HEADS + blockIdx.y;
    unsigned* keys = reinterpret_cast<unsigned*>(args.k_pages + page * CODE_BYTES);
    unsigned* values = reinterpret_cast<unsigned*>(args.v_pages + page * CODE_BYTES);
    unsigned char* scales = args.scales + page * SCALE_STRIDE;
    const float outer_keys = *outer_place(args, false), outer_values = *outer_place(args, true);
#pragma unroll 1
    for (int n = threadIdx.x; n < 2 * KIND_BLOCKS; n += THREADS) {
        const bool is_value = n >= KIND_BLOCKS;
        const int place = n % KIND_BLOCKS / (HEAD_DIM / 16), element = n % (HEAD_DIM / 16) * 16;
        const Coded made(args, is_value ? outer_values : outer_keys, place, element, is_value);
        scales[is_value ? value_scale(place, element) : key_scale(place, element)] = (unsigned char)made.scale;
        if (is_value) {
#pragma unroll
            for (int i = 0; i < 4; ++i) *reinterpret_cast<unsigned*>(&of_values[place][element + 4 * i]) = made.codes[i];
            continue;
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            unsigned word = 0;
#pragma unroll
            for (int i = 0; i < 8; ++i) word |= placed(made.of(8 * half + i), i);
            keys[key_code(place, element + 8 * half).word] = word;
        }
    }
    __syncthreads();
#pragma unroll 1
    for (int n = threadIdx.x; n < BLOCK / 8 * HEAD_DIM; n += THREADS) {
        const int element = n % HEAD_DIM, place = n / HEAD_DIM * 8;
        unsigned word = 0;
#pragma unroll
        for (int i = 0; i < 8; ++i) word |= placed(of_values[place + i][element], i);
        values[value_code(place, element).word] = word;
    }
}
