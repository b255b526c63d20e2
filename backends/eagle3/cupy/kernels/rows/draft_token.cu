// The draft's next token and, at once, the input of its next step: the LM head's choice is mapped to a target id, the token's
// embedding is read, and the hidden state is put beside it.
//
// One block per active slot. drafts[slot][index] = target_ids[index of the LM head's choice]; choices[a] is cleared again.
// Where `input` is given, input[a] = [norm(embed(token)), norm(hidden)]. `hidden` is the draft's own: stream[a] or, with
// NORM_OUTPUT, its norm, which is normed[a] divided by the root mean square that squares[a] tells.
//
// Layouts: drafts [slot][MAX_ROWS]; input [a][2 · HIDDEN]; stream and normed [a][HIDDEN]; squares [a][HIDDEN / 8].
//
// An embedding is the end of a chain of reads, and no cache holds it: the hidden state is normed meanwhile. The next kernel
// may start once all threads have requested their part: a product that fetches its weights as fast as memory allows would
// stand before them in the queue.
#include "argmax.cuh"
#include "dependent.cuh"
#include "draft_row.cuh"
#include "slots.cuh"

struct DraftTokenArguments {                                // launched on [S]
    int* drafts;                                            // [S, MAX_ROWS]
    bf16* input;                                            // [S, 2 * HIDDEN] or null
    float* stream;                                          // [S, HIDDEN]
    Choice* choices;                                        // [S]
    int* fault;                                             // [1]
    const int* target_ids;                                  // [DRAFT_VOCAB]
    const bf16* normed;                                     // [S, HIDDEN]
    const float* squares;                                   // [S, HIDDEN / 8]
    const bf16 *embedding, *embedding_norm, *feature_norm;  // [_, HIDDEN], [HIDDEN], [HIDDEN]
    const int *active, *active_count;                       // [S], [1]
    int index;
    float eps;
};

// The hidden state of the slot's row.
__device__ __forceinline__ void load_hidden(HalfRow& hidden, const DraftTokenArguments& args, const float* mine) {
    const int a = blockIdx.x;
    float scale = 1;
    if (NORM_OUTPUT) {
        float sum = 0;
        for (int i = threadIdx.x; i < HIDDEN / 8; i += THREADS) sum += args.squares[a * (HIDDEN / 8) + i];
        scale = rsqrtf(block_sum<THREADS>(sum) / HIDDEN + args.eps);
    }
    auto own = [&](int i) {
        return NORM_OUTPUT ? to_float(to_bf16(to_float(args.normed[(long long)a * HIDDEN + i]) * scale)) : mine[i];
    };
    hidden.load(own, args.feature_norm);
}

extern "C" __global__ __launch_bounds__(THREADS) void draft_token(const __grid_constant__ DraftTokenArguments args) {
    const int a = blockIdx.x;
    prefetch<THREADS>(args.target_ids, DRAFT_VOCAB * sizeof(int));
    if (args.input) prefetch_norms(args.embedding_norm, args.feature_norm);
    await_previous();
    const int count = *args.active_count, slot = args.active[a];
    const Choice best = args.choices[a];
    __syncthreads();  // all threads have read the choice, and requested all three at once
    if (a >= count) return;
    // A choice that was taken already, as when this kernel is timed alone, holds no index; what is read must be a token even
    // so.
    const long long token = args.target_ids[min((unsigned)index_of(best), DRAFT_VOCAB - 1u)];
    HalfRow embedded, hidden;
    float* mine = args.stream + (long long)a * HIDDEN;
    if (args.input) load_hidden(hidden, args, mine);
    if (threadIdx.x == 0) {
        args.choices[a] = 0;
        args.drafts[slot * MAX_ROWS + args.index] = (int)token;
        if (!is_finite(best)) atomicOr(args.fault, DRAFT_NOT_FINITE);
    }
    if (!args.input) return;
    bf16* row = args.input + (long long)a * 2 * HIDDEN;
    load_embedding(embedded, args.embedding + token * HIDDEN, args.embedding_norm);
    finish_hidden(hidden, row, mine, args.eps);
    let_next_start();
    finish_embedding(embedded, row, args.eps);
}
