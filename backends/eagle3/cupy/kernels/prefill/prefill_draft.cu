// The draft's input over a prompt: input[r] = [norm(embedding of the token after row r), norm(hidden[r])].
//
// One block per row. Layouts: input [row][2 · HIDDEN]; hidden [row][HIDDEN]; tokens [row], each one ahead of its row.
#include "dependent.cuh"
#include "eights.cuh"

struct PrefillDraftArguments {                  // launched on [R]
    bf16* input;                                // [R, 2 * HIDDEN]
    const bf16 *hidden, *embedding;             // [R, HIDDEN], [_, HIDDEN]
    const long long* tokens;                    // [R]
    const bf16 *embedding_norm, *feature_norm;  // [HIDDEN]
    float eps;
};

extern "C" __global__ __launch_bounds__(THREADS) void prefill_draft(const PrefillDraftArguments args) {
    await_previous();
    const long long row = blockIdx.x;
    const uint4* embedding = reinterpret_cast<const uint4*>(args.embedding + args.tokens[row] * HIDDEN);
    const uint4* hidden = reinterpret_cast<const uint4*>(args.hidden + row * HIDDEN);
    bf16* input = args.input + row * 2 * HIDDEN;
    EightsRow<HIDDEN, THREADS> embedded, own;
    embedded.load([&](int group, float (&eight)[8]) { unpack(eight, embedding[group]); });
    own.load([&](int group, float (&eight)[8]) { unpack(eight, hidden[group]); });
    embedded.norm(input, args.embedding_norm, args.eps);
    own.norm(input + HIDDEN, args.feature_norm, args.eps);
}
