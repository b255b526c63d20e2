// The tokens of one level of a tree and, at once, the input of the draft's next level: a node's token is the one of its rank
// among the likeliest behind its parent; its embedding is read, and the parent's hidden state is put beside it.
//
// One block per node of the level, NODES of them per active slot. The draft ran on SOURCES rows per slot; nodes with children
// are the ROWS rows per slot that it runs on next. drafts[slot][node - 1] = the node's token, as an id of the target; where a
// node has children, input[row] = [norm(embed(token)), norm(hidden)] and next_stream[row] are its row's. `hidden` is the
// draft's own: see draft_token.cu.
//
// Layouts: nodes [node - 1][3]: the row of its parent, its rank, and its own row, -1 without children; candidates
// [row][PARTS][TOP], as tree_top.cu leaves them; drafts [slot][MAX_ROWS]; input [row][2 · HIDDEN]; stream, next_stream and
// normed [row][HIDDEN]; squares [row][HIDDEN / 8].
#include "dependent.cuh"
#include "draft_hidden.cuh"
#include "largest.cuh"
#include "slots.cuh"

struct TreeTokenArguments {
    int* drafts;
    bf16* input;
    float* next_stream;
    int* fault;
    const float* stream;
    const Choice* candidates;
    const int* nodes;
    const int* target_ids;
    const bf16* normed;
    const float* squares;
    const bf16* embedding;
    const bf16* embedding_norm;
    const bf16* feature_norm;
    const int* active;
    const int* active_count;
    float eps;
};

// The choice of `rank` among all parts of a row, by every warp for itself; `first` becomes that of rank 0.
__device__ __forceinline__ Choice choice_of_rank(const Choice (&lists)[PARTS][TOP], int rank, Choice& first) {
    auto of = [&](int list, int n) { return lists[list][n]; };
    int taken = 0;
    Choice next = first = take_next<PARTS, TOP>(taken, of);
#pragma unroll 1
    for (int n = 0; n < rank; ++n) next = take_next<PARTS, TOP>(taken, of);
    return next;
}

extern "C" __global__ __launch_bounds__(THREADS) void tree_token(const __grid_constant__ TreeTokenArguments args) {
    __shared__ Choice lists[PARTS][TOP];
    const int a = blockIdx.x / NODES, node = FIRST_NODE + blockIdx.x % NODES;
    prefetch<THREADS>(args.target_ids, DRAFT_VOCAB * sizeof(int));
    prefetch_norms(args.embedding_norm, args.feature_norm);
    const int* of_node = args.nodes + (node - 1) * 3;
    const int source = a * SOURCES + of_node[0], rank = of_node[1], own = ROWS ? of_node[2] : -1;
    const int count = *args.active_count, slot = args.active[a];
    const long long row = a * ROWS + own;
    // The kernel before this one only looks for candidates. All that does not depend on these is done meanwhile.
    if (a < count && own >= 0) {
        HalfRow hidden;
        load_hidden(hidden, args, source);
        finish_hidden(hidden, args.input + row * 2 * HIDDEN, args.next_stream + row * HIDDEN, args.eps);
    }
    await_previous();
    if (a >= count) return;
    for (int n = threadIdx.x; n < PARTS * TOP; n += THREADS)
        lists[n / TOP][n % TOP] = args.candidates[(long long)source * PARTS * TOP + n];
    __syncthreads();
    Choice first = 0;
    const Choice best = choice_of_rank(lists, rank, first);
    // What was never a choice, as when this kernel is timed alone, holds no index; what is read must be a token even so.
    const long long token = args.target_ids[min((unsigned)index_of(best), DRAFT_VOCAB - 1u)];
    if (threadIdx.x == 0) {
        args.drafts[slot * MAX_ROWS + node - 1] = (int)token;
        if (!is_finite(first)) atomicOr(args.fault, DRAFT_NOT_FINITE);
    }
    if (own < 0) return;
    HalfRow embedded;
    load_embedding(embedded, args.embedding + token * HIDDEN, args.embedding_norm);
    let_next_start();
    finish_embedding(embedded, args.input + row * 2 * HIDDEN, args.eps);
}
