// The weighted sum of a row's experts into the residual stream, and the next norm: x += Σ_j weight_j · (out_j + bias) over the
// places j of the row, in their order. With PARTIAL, other GPUs have the rest of the experts' width: `normed` becomes the sum,
// rounded once, to which nothing is added.
//
// One block per row. Layouts: x [row][HIDDEN] float32; normed [row][HIDDEN]; out [pair][HIDDEN], pairs sorted by their expert;
// bias [expert][HIDDEN]; place, chosen, weights [row][PER_TOKEN]: where a pair lies among the sorted ones, its expert and its
// weight.
#include "dependent.cuh"
#include "eights.cuh"

#ifndef PARTIAL
#define PARTIAL 0
#endif

struct PrefillMixtureArguments {  // launched on [R]
    bf16* normed;                 // [R, HIDDEN]
    float* x;                     // [R, HIDDEN] if !PARTIAL
    const bf16 *out, *bias;       // [R * PER_TOKEN, HIDDEN], [EXPERTS, HIDDEN]
    const int *place, *chosen;    // [R, PER_TOKEN]
    const float* weights;         // [R, PER_TOKEN]
    const bf16* weight;           // [HIDDEN] if !PARTIAL
    float eps;
};

extern "C" __global__ __launch_bounds__(THREADS) void prefill_mixture(const PrefillMixtureArguments args) {
    await_previous();
    const long long row = blockIdx.x;
    float4* x = reinterpret_cast<float4*>(args.x + row * HIDDEN);
    const uint4 *out[PER_TOKEN], *bias[PER_TOKEN];
    float share[PER_TOKEN];
#pragma unroll
    for (int j = 0; j < PER_TOKEN; ++j) {
        const long long pair = args.place[row * PER_TOKEN + j], expert = args.chosen[row * PER_TOKEN + j];
        out[j] = reinterpret_cast<const uint4*>(args.out + pair * HIDDEN);
        bias[j] = reinterpret_cast<const uint4*>(args.bias + expert * HIDDEN);
        share[j] = args.weights[row * PER_TOKEN + j];
    }
    EightsRow<HIDDEN, THREADS> stream;
    stream.load([&](int group, float (&eight)[8]) {
        float total[8];
#pragma unroll
        for (int j = 0; j < PER_TOKEN; ++j) {
            float product[8], its[8];
            unpack(product, out[j][group]);
            unpack(its, bias[j][group]);
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const float part = (product[i] + its[i]) * share[j];
                total[i] = j ? total[i] + part : part;
            }
        }
        if (PARTIAL) {
#pragma unroll
            for (int i = 0; i < 8; ++i) eight[i] = total[i];
            return;
        }
        const float4 low = x[2 * group], high = x[2 * group + 1];
        const float before[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
        for (int i = 0; i < 8; ++i) eight[i] = before[i] + total[i];
    });
    if (PARTIAL) {
        stream.each([&](int group, const float (&eight)[8]) {
            reinterpret_cast<uint4*>(args.normed + row * HIDDEN)[group] = packed(eight);
        });
        return;
    }
    stream.each([&](int group, const float (&eight)[8]) {
        x[2 * group] = make_float4(eight[0], eight[1], eight[2], eight[3]);
        x[2 * group + 1] = make_float4(eight[4], eight[5], eight[6], eight[7]);
    });
    stream.norm(args.normed + row * HIDDEN, args.weight, args.eps);
}
