// The tokens of one level of a tree and, at once, the input of the draft's next level: a node's token is the one of its rank
// among the likeliest behind its parent; its embedding is read, and the parent's hidden state is put beside it.
//
// One block per node of the level, NODES of them per active slot, each of which finds its own token in its parent's row of the
// draft's logits. The draft ran on SOURCES rows per slot; nodes with children are the ROWS rows per slot that it runs on next.
// drafts[slot][node - 1] = the node's token, as an id of the target; where a node has children, input[row] =
// [norm(embed(token)), norm(hidden)] and next_stream[row] are its row's. `hidden` is the draft's own: see draft_token.cu.
//
// Layouts: nodes [node - 1][3]: the row of its parent, its rank, and its own row, -1 without children; logits
// [row][DRAFT_VOCAB] and maxima [row][MAXIMA], as the LM head leaves them; drafts [slot][MAX_ROWS]; input [row][2 · HIDDEN];
// stream, next_stream and normed [row][HIDDEN]; squares [row][HIDDEN / 8].
//
// Several reads wait for each other: maxima, logits, the token's id, its embedding. The hidden state is normed meanwhile. The
// next kernel may start once all threads have requested their part of an embedding: see draft_token.cu.
#include "dependent.cuh"
#include "draft_hidden.cuh"
#include "likeliest.cuh"
#include "slots.cuh"

struct TreeTokenArguments {                                 // launched on [S * NODES] for SOURCES rows of a slot
    int* drafts;                                            // [S, MAX_ROWS]
    bf16* input;                                            // [S * ROWS, 2 * HIDDEN]
    float* next_stream;                                     // [S * ROWS, HIDDEN]
    int* fault;                                             // [1]
    const float *stream, *logits;                           // [R, HIDDEN], [R, DRAFT_VOCAB]
    const unsigned* maxima;                                 // [R, (DRAFT_VOCAB + 31) / 32 * 4]
    const int *nodes, *target_ids;                          // [FIRST_NODE + NODES - 1, 3], [DRAFT_VOCAB]
    const bf16* normed;                                     // [R, HIDDEN]
    const float* squares;                                   // [R, HIDDEN / 8]
    const bf16 *embedding, *embedding_norm, *feature_norm;  // [_, HIDDEN], [HIDDEN], [HIDDEN]
    const int *active, *active_count;                       // [S], [1]
    float eps;
};

extern "C" __global__ __launch_bounds__(THREADS, 1) void tree_token(const __grid_constant__ TreeTokenArguments args) {
    const int a = blockIdx.x / NODES, node = FIRST_NODE + blockIdx.x % NODES;
    prefetch<THREADS>(args.target_ids, DRAFT_VOCAB * sizeof(int));
    prefetch_norms(args.embedding_norm, args.feature_norm);
    const int* of_node = args.nodes + (node - 1) * 3;
    const int source = a * SOURCES + of_node[0], rank = of_node[1], own = ROWS ? of_node[2] : -1;
    const int count = *args.active_count, slot = args.active[a];
    await_previous();
    if (a >= count) return;
    Likeliest likeliest(args.logits + (long long)source * DRAFT_VOCAB, args.maxima + (long long)source * MAXIMA);
    const long long row = a * ROWS + own;
    HalfRow embedded, hidden;
    if (own >= 0) load_hidden(hidden, args, source);
    auto norm_hidden = [&] {
        if (own >= 0) finish_hidden(hidden, args.input + row * 2 * HIDDEN, args.next_stream + row * HIDDEN, args.eps);
    };
    // What was never a choice, as when this kernel is timed alone, holds no index; what is read must be a token even so.
    auto token_of = [&](Choice best) { return args.target_ids[min((unsigned)index_of(best), DRAFT_VOCAB - 1u)]; };
    Choice first = 0;
    const long long token = likeliest.of_rank(rank, first, norm_hidden, token_of);
    if (threadIdx.x == 0) {
        args.drafts[slot * MAX_ROWS + node - 1] = (int)token;
        if (!is_finite(first)) atomicOr(args.fault, DRAFT_NOT_FINITE);
    }
    if (own < 0) return;
    load_embedding(embedded, args.embedding + token * HIDDEN, args.embedding_norm);
    let_next_start();
    finish_embedding(embedded, args.input + row * 2 * HIDDEN, args.eps);
}
