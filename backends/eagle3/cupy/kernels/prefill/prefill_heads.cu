// Queries, keys and values of a prompt as attention wants them: queries and keys are rotated in place, and keys and values go
// into the paged cache. What a prompt leaves of its last cache block becomes zeros.
//
// Layouts: qkv [position][(HEADS + 2 · KV_HEADS) · HEAD_DIM]; k_pages [block][KV_HEADS][BLOCK][HEAD_DIM]; v_pages
// [block][KV_HEADS][HEAD_DIM][BLOCK], both of one layer; cosine and sine [position][HEAD_DIM / 2].
//
// KV_FP8, KV_NVFP4: the cache is in E4M3 or NVFP4, and kernels of their own put keys and values into it (prefill_fp8.cuh,
// prefill_nvfp4.cuh).
//
// blockIdx.x is a cache block. Of blockIdx.y, the first PARTS have TOGETHER heads each, which share an angle's cosine and sine;
// the others have the values of one head each, and transpose them.
#include "dependent.cuh"
#include "eights.cuh"
#include "rope.cuh"

#ifndef KV_FP8
#define KV_FP8 0
#endif
#ifndef KV_NVFP4
#define KV_NVFP4 0
#endif
#define KV_CODES (KV_FP8 || KV_NVFP4)
#if KV_CODES
#include "fp8.cuh"
#endif

static_assert(HEAD_DIM % 16 == 0 && BLOCK % 8 == 0, "HEAD_DIM must be a multiple of 16, BLOCK of 8");

const int WIDTH = (HEADS + 2 * KV_HEADS) * HEAD_DIM, ROTATED = HEADS + KV_HEADS, TOGETHER = 4;
const int PARTS = (ROTATED + TOGETHER - 1) / TOGETHER, EIGHTS = HEAD_DIM / 8;

struct PrefillHeadsArguments {   // launched on [(positions - 1) / BLOCK + 1, PARTS + KV_HEADS * (!KV_CODES)]
    bf16* qkv;                   // [positions, (HEADS + 2 * KV_HEADS) * HEAD_DIM]
    bf16 *k_pages, *v_pages;     // [_, KV_HEADS, BLOCK, HEAD_DIM], [_, KV_HEADS, HEAD_DIM, BLOCK] if !KV_CODES
    const long long* blocks;     // [(positions + BLOCK - 1) / BLOCK]
    const float *cosine, *sine;  // [positions, HEAD_DIM / 2]
    int positions;
    const bf16* head_norms;  // [2, HEAD_DIM] if HEAD_NORM_EPS
};

// Eight angles' cosines or sines.
__device__ __forceinline__ void load_angles(float (&eight)[8], const float* from) {
    const float4 low = reinterpret_cast<const float4*>(from)[0], high = reinterpret_cast<const float4*>(from)[1];
    eight[0] = low.x, eight[1] = low.y, eight[2] = low.z, eight[3] = low.w;
    eight[4] = high.x, eight[5] = high.y, eight[6] = high.z, eight[7] = high.w;
}

// The scale of a head's norm, of which the lane has eight pairs. Its squares are added up by all lanes that have a part of it,
// which are neighbours; the whole warp calls.
__device__ __forceinline__ float norm_scale(uint4 low, uint4 high) {
    static_assert((HEAD_DIM & (HEAD_DIM - 1)) == 0 || !(HEAD_NORM_EPS > 0), "normed heads must be a power of two");
    float x[8], y[8], squares = 0;
    unpack(x, low);
    unpack(y, high);
#pragma unroll
    for (int i = 0; i < 8; ++i) squares = fmaf(x[i], x[i], fmaf(y[i], y[i], squares));
#pragma unroll
    for (int step = EIGHTS / 4; step; step /= 2) squares += __shfl_xor_sync(FULL_WARP, squares, step);
    return rsqrtf(squares / HEAD_DIM + (float)HEAD_NORM_EPS);
}

__device__ __forceinline__ void norm_eight(float (&x)[8], float scale, const bf16* weight) {
    float weights[8];
    unpack(weights, *reinterpret_cast<const uint4*>(weight));
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = x[i] * scale * weights[i];
}

// Eight pairs of a head: elements i … i + 7 in `low`, i + HALF_DIM … in `high`. Of its norm, if it has one, `weight` points at
// element i.
__device__ __forceinline__ void rotate(uint4& low, uint4& high, const float (&cosine)[8], const float (&sine)[8], float scale,
                                       const bf16* weight) {
    float x[8], y[8];
    unpack(x, low);
    unpack(y, high);
    if constexpr (HEAD_NORM_EPS > 0) norm_eight(x, scale, weight), norm_eight(y, scale, weight + HALF_DIM);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const float2 turned = rotated(x[i], y[i], cosine[i], sine[i]);
        x[i] = turned.x, y[i] = turned.y;
    }
    low = packed(x), high = packed(y);
}

__device__ __forceinline__ void rotate_heads(const PrefillHeadsArguments& args, int first) {
#if !KV_CODES
    const long long block = args.blocks[blockIdx.x];
#endif
    for (int item = threadIdx.x; item < BLOCK * EIGHTS / 2; item += THREADS) {
        const int place = item / (EIGHTS / 2), at = item % (EIGHTS / 2) * 8;
        const long long position = (long long)blockIdx.x * BLOCK + place;
        const bool inside = position < args.positions;
        bf16* row = args.qkv + position * WIDTH + at;
        uint4 low[TOGETHER], high[TOGETHER];
#pragma unroll
        for (int n = 0; n < TOGETHER; ++n) {
            const bf16* head = row + (first + n) * HEAD_DIM;
            const bool wanted = inside && first + n < ROTATED;
            low[n] = wanted ? *reinterpret_cast<const uint4*>(head) : make_uint4(0, 0, 0, 0);
            high[n] = wanted ? *reinterpret_cast<const uint4*>(head + HALF_DIM) : make_uint4(0, 0, 0, 0);
        }
        float scale[TOGETHER] = {};
        if constexpr (HEAD_NORM_EPS > 0)
#pragma unroll
            for (int n = 0; n < TOGETHER; ++n) scale[n] = norm_scale(low[n], high[n]);
        if (inside) {
            float cosine[8], sine[8];
            load_angles(cosine, args.cosine + position * HALF_DIM + at);
            load_angles(sine, args.sine + position * HALF_DIM + at);
#pragma unroll
            for (int n = 0; n < TOGETHER; ++n) {
                const bf16* weight = first + n < HEADS ? args.head_norms : norm_of_keys(args.head_norms);
                rotate(low[n], high[n], cosine, sine, scale[n], weight + at);
                if (first + n >= ROTATED) continue;
                bf16* head = row + (first + n) * HEAD_DIM;
                *reinterpret_cast<uint4*>(head) = low[n];
                *reinterpret_cast<uint4*>(head + HALF_DIM) = high[n];
            }
        }
#if !KV_CODES
#pragma unroll
        for (int n = 0; n < TOGETHER; ++n) {
            const int head = first + n - HEADS;
            if (head < 0 || head >= KV_HEADS) continue;
            bf16* key = args.k_pages + ((block * KV_HEADS + head) * BLOCK + place) * HEAD_DIM + at;
            *reinterpret_cast<uint4*>(key) = low[n];
            *reinterpret_cast<uint4*>(key + HALF_DIM) = high[n];
        }
#endif
    }
}

__device__ __forceinline__ void transpose_values(const PrefillHeadsArguments& args, int head) {
    // Two elements more per row: eight positions of an element then lie in at least four banks.
    alignas(4) __shared__ bf16 tile[BLOCK][HEAD_DIM + 2];
    const long long block = args.blocks[blockIdx.x];
    for (int item = threadIdx.x; item < BLOCK * EIGHTS; item += THREADS) {
        const int place = item / EIGHTS, at = item % EIGHTS * 8;
        const long long position = (long long)blockIdx.x * BLOCK + place;
        const bf16* value = args.qkv + position * WIDTH + (ROTATED + head) * HEAD_DIM + at;
        uint4 eight = make_uint4(0, 0, 0, 0);
        if (position < args.positions) eight = *reinterpret_cast<const uint4*>(value);
        unsigned* to = reinterpret_cast<unsigned*>(&tile[place][at]);
        to[0] = eight.x, to[1] = eight.y, to[2] = eight.z, to[3] = eight.w;
    }
    __syncthreads();
    bf16* page = args.v_pages + (block * KV_HEADS + head) * HEAD_DIM * BLOCK;
    for (int item = threadIdx.x; item < HEAD_DIM * BLOCK / 8; item += THREADS) {
        const int element = item / (BLOCK / 8), place = item % (BLOCK / 8) * 8;
        unsigned words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) words[i] = tile[place + 2 * i][element] | (unsigned)tile[place + 2 * i + 1][element] << 16;
        *reinterpret_cast<uint4*>(page + element * BLOCK + place) = make_uint4(words[0], words[1], words[2], words[3]);
    }
}

extern "C" __global__ __launch_bounds__(THREADS) void prefill_heads(const PrefillHeadsArguments args) {
    await_previous();
    const int part = blockIdx.y;
    if (part < PARTS)
        rotate_heads(args, part * TOGETHER);
    else
        transpose_values(args, part - PARTS);
}

#if KV_FP8
#include "prefill_fp8.cuh"

extern "C" __global__ __launch_bounds__(THREADS) void prefill_fp8(const PrefillFp8Arguments args) {
    await_previous();
    quantise_sixteen(args);
}
#endif

#if KV_NVFP4
#include "prefill_nvfp4.cuh"

extern "C" __global__ __launch_bounds__(64) void prefill_nvfp4_outer(const PrefillNvfp4Arguments args) {
    await_previous();
    make_outer(args);
}

extern "C" __global__ __launch_bounds__(THREADS) void prefill_nvfp4(const PrefillNvfp4Arguments args) {
    await_previous();
    quantise_block(args);
}
#endif
