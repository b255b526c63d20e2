// act = gate · σ(ALPHA · gate) · (up + 1), of an expert's products to which its biases are added: gate is clamped from above,
// up on both sides. In float32, rounded once.
//
// A thread has eight elements. Layouts: act [pair][INTERMEDIATE]; both [pair][2 · INTERMEDIATE], gates at even places; bias
// [expert][2 · INTERMEDIATE]; experts [pair].
#include "clamped_swiglu.cuh"
#include "dependent.cuh"
#include "eights.cuh"

static_assert(INTERMEDIATE % 8 == 0, "INTERMEDIATE must be a multiple of 8");

struct PrefillSwigluArguments {  // launched on [(pairs * (INTERMEDIATE / 8) - 1) / THREADS + 1]
    bf16* act;                   // [pairs, INTERMEDIATE]
    const bf16 *both, *bias;     // [pairs, 2 * INTERMEDIATE], [EXPERTS, 2 * INTERMEDIATE]
    const int* experts;          // [pairs]
    int pairs;
};

extern "C" __global__ __launch_bounds__(THREADS) void prefill_swiglu(const PrefillSwigluArguments args) {
    await_previous();
    const int GROUPS = INTERMEDIATE / 8;
    const long long index = (long long)blockIdx.x * THREADS + threadIdx.x, pair = index / GROUPS, group = index % GROUPS;
    if (pair >= args.pairs) return;
    const long long expert = args.experts[pair];
    const uint4* both = reinterpret_cast<const uint4*>(args.both) + 2 * index;
    const uint4* bias = reinterpret_cast<const uint4*>(args.bias + expert * 2 * INTERMEDIATE) + 2 * group;
    float act[8];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        float product[8], its[8];
        unpack(product, both[half]);
        unpack(its, bias[half]);
#pragma unroll
        for (int i = 0; i < 4; ++i)
            act[4 * half + i] = clamped_swiglu(product[2 * i] + its[2 * i], product[2 * i + 1] + its[2 * i + 1]);
    }
    reinterpret_cast<uint4*>(args.act)[index] = packed(act);
}
