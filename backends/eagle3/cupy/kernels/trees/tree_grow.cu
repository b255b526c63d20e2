// The nodes of a dynamic tree that the draft runs on next, and their input: the ROWS likeliest of a level's candidates, by the
// probability of their paths, exact ties to the earlier one. A candidate's embedding is read, and its parent's hidden state is
// put beside it (tree_token.cu does that for the nodes of a file).
//
// One block per row that the draft runs on, ROWS of them per active slot. The draft ran on SOURCES rows per slot, each of which
// gives TOP candidates. Every block joins all of them (joined_rows.cuh) and finds the same rows; it makes its own. All
// candidates of all levels are the slot's pool, a level after the other from BEGIN on, ordered by row and rank: `tree_choose`
// takes the tree from there. Rows are numbered level by level, from FIRST on, and stand in ascending order of candidates.
//
// Layouts: candidates [row][PARTS][TOP] and sums [row][PARTS], as tree_top.cu leaves them; pool [slot][POOL]; entries (each
// row's candidate in the pool), scores and masks (what a row looks at: rows above it, and itself) [slot][FOREST]; input
// [row][2 · HIDDEN]; stream, next_stream and normed [row][HIDDEN]; squares [row][HIDDEN / 8].
#include "dependent.cuh"
#include "draft_hidden.cuh"
#include "joined_rows.cuh"
#include "slots.cuh"

static_assert(SOURCES == 1 ? ROWS == TOP : SOURCES == ROWS && TOP == ROWS, "a level has as many rows as a row has candidates");
static_assert(SOURCES <= 32, "a lane of a warp has the candidates of one row");

struct TreeGrowArguments {                                  // launched on [S * ROWS] for SOURCES rows of a slot
    uint2* pool;                                            // [S, POOL, 2]
    int* entries;                                           // [S, FOREST]
    float* scores;                                          // [S, FOREST]
    long long* masks;                                       // [S, FOREST]
    bf16* input;                                            // [S * ROWS, 2 * HIDDEN]
    float* next_stream;                                     // [S * ROWS, HIDDEN]
    int* fault;                                             // [1]
    const float* stream;                                    // [R, HIDDEN]
    const Choice* candidates;                               // [R * PARTS * TOP]
    const float2* sums;                                     // [R * PARTS, 2]
    const int* target_ids;                                  // [DRAFT_VOCAB]
    const bf16* normed;                                     // [R, HIDDEN]
    const float* squares;                                   // [R, HIDDEN / 8]
    const bf16 *embedding, *embedding_norm, *feature_norm;  // [_, HIDDEN], [HIDDEN], [HIDDEN]
    const int *active, *active_count;                       // [S], [1]
    float eps;
};

// Which candidate is the level's row `own`: its source in x, its rank in y. By one warp.
__device__ __forceinline__ int2 candidate_of(const Candidate (&joined)[SOURCES][TOP], int own) {
    if (SOURCES == 1) return make_int2(0, own);
    const int lane = threadIdx.x % 32;
    int taken = 0;  // of the candidates of this lane's row, which stand in falling order: those are its first
#pragma unroll 1
    for (int n = 0; n < ROWS; ++n) {
        const unsigned score = lane < SOURCES && taken < TOP ? joined[lane][taken].score : 0;
        const unsigned highest = __reduce_max_sync(FULL_WARP, score);
        taken += (int)__reduce_min_sync(FULL_WARP, score == highest ? lane : 32) == lane;
    }
    int until = taken;  // those of the rows up to this lane's
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const int earlier = __shfl_up_sync(FULL_WARP, until, step);
        until += lane >= step ? earlier : 0;
    }
    const int before = until - taken;
    const bool holds = before <= own && own < until;
    const int found = (int)__reduce_max_sync(FULL_WARP, holds ? (unsigned)(lane * TOP + own - before) : 0u);
    return make_int2(found / TOP, found % TOP);
}

extern "C" __global__ __launch_bounds__(THREADS, 1) void tree_grow(const __grid_constant__ TreeGrowArguments args) {
    __shared__ Candidate joined[SOURCES][TOP];
    __shared__ float paths[SOURCES];
    __shared__ int2 chosen;
    const int a = blockIdx.x / ROWS, own = blockIdx.x % ROWS, t = threadIdx.x;
    prefetch<THREADS>(args.target_ids, DRAFT_VOCAB * sizeof(int));
    prefetch_norms(args.embedding_norm, args.feature_norm);
    const int count = *args.active_count, slot = args.active[a], before = slot * FOREST + FIRST - SOURCES;
    if (t < SOURCES) paths[t] = FIRST ? args.scores[before + t] : 0;
    await_previous();
    if (a >= count) return;
    __syncthreads();
    join_rows(
        args.candidates, args.sums, a * SOURCES, SOURCES, args.fault, [&](int row) { return paths[row]; },
        [&](int row, int rank, const Candidate& of) {
            joined[row][rank] = of;
            if (row == own) args.pool[slot * POOL + BEGIN + row * TOP + rank] = make_uint2(of.score, of.column);
        });
    __syncthreads();
    if (t < 32) {
        const int2 found = candidate_of(joined, own);
        if (t == 0) chosen = found;
    }
    __syncthreads();
    const int source = chosen.x, rank = chosen.y, row = a * ROWS + own;
    const Candidate of = joined[source][rank];
    // What was never a choice, as when this kernel is timed alone, holds no index; what is read must be a token even so.
    const long long token = args.target_ids[min(of.column, DRAFT_VOCAB - 1u)];
    if (t == 0) {
        const int at = slot * FOREST + FIRST + own;
        const long long above = FIRST ? args.masks[before + source] : 0;
        args.entries[at] = BEGIN + source * TOP + rank;
        args.scores[at] = number_of(of.score);
        args.masks[at] = above | 1ll << (FIRST + own);
    }
    HalfRow embedded, hidden;
    load_hidden(hidden, args, a * SOURCES + source);
    load_embedding(embedded, args.embedding + token * HIDDEN, args.embedding_norm);
    finish_hidden(hidden, args.input + (long long)row * 2 * HIDDEN, args.next_stream + (long long)row * HIDDEN, args.eps);
    let_next_start();
    finish_embedding(embedded, args.input + (long long)row * 2 * HIDDEN, args.eps);
}
