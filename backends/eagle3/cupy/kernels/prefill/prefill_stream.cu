// The residual stream of a prompt's rows between two products, in one pass over it: x becomes the embedding of the row's token
// or x + added, and its next norm is the input of the next product.
//
// One block per row. Layouts: x [row][HIDDEN] float32; added, normed [row][HIDDEN].
#include "dependent.cuh"
#include "eights.cuh"

struct PrefillStreamArguments {  // launched on [R]
    float* x;                    // [R, HIDDEN]
    const bf16* added;           // [R, HIDDEN] or null: the rows begin with their embeddings
    const bf16* embedding;       // [_, HIDDEN] or null
    const long long* tokens;     // [R] or null
    bf16* normed;                // [R, HIDDEN]
    const bf16* weight;          // [HIDDEN]
    float eps;
};

extern "C" __global__ __launch_bounds__(THREADS) void prefill_stream(const PrefillStreamArguments args) {
    await_previous();
    const long long row = blockIdx.x;
    float4* x = reinterpret_cast<float4*>(args.x + row * HIDDEN);
    const bf16* from = args.added ? args.added + row * HIDDEN : args.embedding + args.tokens[row] * HIDDEN;
    EightsRow<HIDDEN, THREADS> stream;
    stream.load([&](int group, float (&eight)[8]) {
        unpack(eight, reinterpret_cast<const uint4*>(from)[group]);
        if (args.added) {
            const float4 low = x[2 * group], high = x[2 * group + 1];
            const float before[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
            for (int i = 0; i < 8; ++i) eight[i] = before[i] + eight[i];
        }
    });
    stream.each([&](int group, const float (&eight)[8]) {
        x[2 * group] = make_float4(eight[0], eight[1], eight[2], eight[3]);
        x[2 * group + 1] = make_float4(eight[4], eight[5], eight[6], eight[7]);
    });
    stream.norm(args.normed + row * HIDDEN, args.weight, args.eps);
}
