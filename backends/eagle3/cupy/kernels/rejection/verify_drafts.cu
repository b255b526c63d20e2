// Verifies drafts by rejection, as specgate/sampling/rejection.py does. A draft token of the target's probability p and the
// draft's q is accepted with the chance min(1, p / q). In the place of the first that is not, a token is drawn from max(p - q,
// 0); where all are accepted, one more is drawn from the target.
//
// It says so in `choices`, one per row of the target: an accepted draft token in its row, and what was drawn in the row after
// the accepted ones. That is never the draft token of its row, so that `accept`, which compares the two, finds as many. Later
// rows keep the target's largest; nobody asks for them.
//
// THREADS · COLUMNS neighbouring columns per block, grid (blocks, slots): all blocks of a slot judge its drafts, and run the
// race in the one row that has one. `sums` are those of sum_rows. `best` [a] and `finished` [a] are zero between launches.
#include "dependent.cuh"
#include "drafted.cuh"
#include "last_block.cuh"
#include "winner.cuh"

struct VerifyDraftsArguments {          // launched on [(VOCAB - 1) / (THREADS * COLUMNS) + 1, S] for DRAFTS + 1 rows of a slot
    Choice *choices, *best;             // [R], [S]
    int* finished;                      // [S]
    const float* logits;                // [R, VOCAB]
    const Choice* cuts;                 // [R] if FILTERED
    const float* draft_logits;          // [DRAFTS, SLOTS, DRAFT_VOCAB]
    const double* sums;                 // [2 * S * DRAFTS]
    const int *draft_columns, *drafts;  // [VOCAB], [S, MAX_ROWS]
    const long long* requests;          // [SLOTS]
    const int *length, *active, *active_count;  // [S], [S], [1]
    int seed_low, seed_high;
};

// Those of row t of a slot.
__device__ __forceinline__ Numbers numbers_of(const VerifyDraftsArguments& args, int slot, int t) {
    const unsigned long long request = (unsigned long long)args.requests[slot];
    return {uint2{(unsigned)args.seed_low, (unsigned)args.seed_high}, (unsigned)(args.length[slot] + 1 + t), (unsigned)request,
            (unsigned)(request >> 32)};
}

__device__ __forceinline__ bool is_accepted(const VerifyDraftsArguments& args, int a, int slot, int t) {
    const Drafted drafted(args, a, slot, t);
    const double* sums = args.sums + a * 2 * DRAFTS;
    const float logit = drafted.judge[drafted.token];
    const double p = drafted.leaves(logit, drafted.token) ? weight_of(logit, drafted.largest) / sums[t] : 0;
    const double q = 1 / sums[DRAFTS + t];
    return uniform(words_of(numbers_of(args, slot, t).block_of(0, FOR_ACCEPTANCE), 0)) * q < p;
}

// The race in the row of a rejected draft token: between columns to which the target gives more than the draft did.
struct Residual {
    const Drafted drafted;
    const int* draft_columns;
    const double ratio;  // of the two sums

    __device__ __forceinline__ Residual(const VerifyDraftsArguments& args, int a, int slot, int t)
        : drafted(args, a, slot, t),
          draft_columns(args.draft_columns),
          ratio(args.sums[a * 2 * DRAFTS + t] / args.sums[a * 2 * DRAFTS + DRAFTS + t]) {}

    // max(p - q, 0), times the target's sum.
    __device__ __forceinline__ double left(float logit, int column) const {
        const int own = draft_columns[column];
        const double p = weight_of(logit, drafted.largest);
        const double q = own < 0 ? 0 : weight_of(drafted.source[own], drafted.drawn) * ratio;
        return p > q ? p - q : 0;
    }
};

extern "C" __global__ __launch_bounds__(THREADS, 1) void verify_drafts(const __grid_constant__ VerifyDraftsArguments args) {
    __shared__ bool accepted[DRAFTS];
    const int a = blockIdx.y;
    await_previous();
    let_next_start();
    if (a >= *args.active_count) return;
    const int slot = args.active[a], t = threadIdx.x;
    Choice* choices = args.choices + a * (DRAFTS + 1);
    if (t < DRAFTS) accepted[t] = is_accepted(args, a, slot, t);
    __syncthreads();
    bool finite = true;
    for (int i = 0; i <= DRAFTS; ++i) finite &= is_finite(choices[i]);
    if (!finite) return;  // the choice that says so stays
    int taken = 0;
    while (taken < DRAFTS && accepted[taken]) ++taken;

    const bool rejects = taken < DRAFTS;
    const Residual residual(args, a, slot, min(taken, DRAFTS - 1));
    const Numbers numbers = numbers_of(args, slot, taken);
    const Purpose purpose = rejects ? FOR_RESIDUAL : FOR_TARGET;
    const float* logits = args.logits + (long long)(a * (DRAFTS + 1) + taken) * VOCAB;
    const float largest = value_of(choices[taken]);
    const Rank cut = FILTERED ? args.cuts[a * (DRAFTS + 1) + taken] : 0;
    const Columns columns;
    float logit[COLUMNS], highest[COLUMNS], most = NO_SCORE;
#pragma unroll
    for (int i = 0; i < COLUMNS; ++i) {
        const int column = columns[i];
        highest[i] = NO_SCORE;
        if (column >= VOCAB) continue;
        logit[i] = logits[column];
        if (FILTERED && rank_of(logit[i], column) < cut) continue;
        if (rejects && column == residual.drafted.token) continue;  // it has nothing left, whatever rounding says
        highest[i] = highest_score(logit[i], largest, words_of(numbers.block_of(column, purpose), column));
        most = highest[i] > most ? highest[i] : most;
    }
    auto run = [&](int i) -> Runner {
        const uint2 words = words_of(numbers.block_of(columns[i], purpose), columns[i]);
        if (!rejects) return runner(exact_score(logit[i], largest, words), columns[i]);
        const double left = residual.left(logit[i], columns[i]);
        return left > 0 ? runner(log(left) - log(exponential(words)), columns[i]) : 0;
    };
    const Runner best = winner_of_warp(highest, most, so_far(args.best + a), run);
    if (threadIdx.x % 32 == 0 && best > so_far(args.best + a)) atomicMax(args.best + a, best);

    if (is_last_of_row(args.finished + a, gridDim.x)) {
        const Runner winner = so_far(args.best + a);
        args.best[a] = 0;
        for (int i = 0; i < taken; ++i) {
            const int token = args.drafts[slot * MAX_ROWS + i];
            choices[i] = choice(args.logits[(long long)(a * (DRAFTS + 1) + i) * VOCAB + token], token);
        }
        // Nobody runs where the two distributions are equal but for rounding; then the largest stays.
        if (winner) choices[taken] = choice(logits[column_of(winner)], column_of(winner));
    }
}
