// A row of a prompt in groups of eight elements: 16 bytes of bfloat16, 32 of float32. One block has the row, in registers.
#pragma once
#include "bf16.cuh"
#include "block.cuh"

__device__ __forceinline__ void unpack(float (&eight)[8], uint4 packed) {
    const unsigned words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        eight[2 * i] = to_float((bf16)(words[i] & 0xffff));
        eight[2 * i + 1] = to_float((bf16)(words[i] >> 16));
    }
}

__device__ __forceinline__ uint4 packed(const float (&eight)[8]) {
    return make_uint4(pack_bf16(eight[0], eight[1]), pack_bf16(eight[2], eight[3]), pack_bf16(eight[4], eight[5]),
                      pack_bf16(eight[6], eight[7]));
}

template <int Width, int Threads>
struct EightsRow {
    static_assert(Width % 8 == 0, "the width of a row must be a multiple of 8");
    static const int GROUPS = Width / 8, EACH = (GROUPS + Threads - 1) / Threads;
    float values[EACH][8];

    // `read(group, eight)` gives group `group` in float32. All groups of a thread are requested together.
    template <typename Read>
    __device__ __forceinline__ void load(Read read) {
#pragma unroll
        for (int n = 0; n < EACH; ++n) {
            const int group = threadIdx.x + n * Threads;
#pragma unroll
            for (int i = 0; i < 8; ++i) values[n][i] = 0;
            if (group < GROUPS) read(group, values[n]);
        }
    }

    // `use(group, eight)` for each group of the thread.
    template <typename Use>
    __device__ __forceinline__ void each(Use use) const {
#pragma unroll
        for (int n = 0; n < EACH; ++n) {
            const int group = threadIdx.x + n * Threads;
            if (group < GROUPS) use(group, values[n]);
        }
    }

    // RMSNorm of the row: out = x / sqrt(mean(x²) + eps) · weight, in float32, rounded once.
    __device__ __forceinline__ void norm(bf16* out, const bf16* weight, float eps) const {
        float squares = 0;
#pragma unroll
        for (int n = 0; n < EACH; ++n)
#pragma unroll
            for (int i = 0; i < 8; ++i) squares = fmaf(values[n][i], values[n][i], squares);
        const float scale = rsqrtf(block_sum<Threads>(squares) / Width + eps);
        each([&](int group, const float (&x)[8]) {
            float weights[8], normed[8];
            unpack(weights, reinterpret_cast<const uint4*>(weight)[group]);
#pragma unroll
            for (int i = 0; i < 8; ++i) normed[i] = x[i] * scale * weights[i];
            reinterpret_cast<uint4*>(out)[group] = packed(normed);
        });
    }
};
