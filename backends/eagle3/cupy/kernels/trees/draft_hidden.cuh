// The draft's own hidden state, which is half of the next input of a tree's nodes. In a chain: draft_token.cu.
#pragma once
#include "draft_row.cuh"

// That of a row of the level before: its residual stream, or with NORM_OUTPUT what the output norm makes of it. That is in
// `normed` [row][HIDDEN] without its factor, for which `squares` [row][HIDDEN / 8] has parts of a sum.
template <typename Arguments>
__device__ __forceinline__ void load_hidden(HalfRow& hidden, const Arguments& args, int row) {
    float scale = 1;
    if (NORM_OUTPUT) {
        float sum = 0;
        for (int i = threadIdx.x; i < HIDDEN / 8; i += THREADS) sum += args.squares[(long long)row * (HIDDEN / 8) + i];
        scale = rsqrtf(block_sum<THREADS>(sum) / HIDDEN + args.eps);
    }
    const long long from = (long long)row * HIDDEN;
    auto own = [&](int i) {
        return NORM_OUTPUT ? to_float(to_bf16(to_float(args.normed[from + i]) * scale)) : args.stream[from + i];
    };
    hidden.load(own, args.feature_norm);
}
