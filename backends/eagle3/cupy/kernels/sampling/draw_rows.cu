// choices[row] = the column that is drawn from the row's logits, in the place of the greedy one: race.cuh.
//
// Before, choices[row] is the greedy choice as the LM head leaves it. It says how large the largest logit is, and whether all
// are finite; where they are not, it stays. After, it holds the drawn column and that column's logit.
//
// THREADS · COLUMNS neighbouring columns per block, grid (blocks, rows). `best` [row] and `finished` [row] are zero between
// launches. With FILTERED, a column may be drawn whose rank is cuts[row] or more; without, every one. With MAPPED, column c
// stands for token target_ids[c], and has that token's random numbers: so a draft draws with the target's, or with those of
// another PURPOSE.
//
// Row a · rows_per_slot + t of slot active[a] is drawn for position length[slot] + 1 + offset + t of its text. With TREE_ROWS
// (0: a chain), row t is node t of a tree, and stands by the nodes above it: masks [slot][TREE_ROWS], see tree_rows.cuh.
#include "dependent.cuh"
#include "last_block.cuh"
#include "winner.cuh"

#ifndef TREE_ROWS
#define TREE_ROWS 0
#endif

static_assert(VOCAB <= 1 << COLUMN_BITS, "VOCAB must be at most 262144: a runner has 18 bits for its column");

struct DrawRowsArguments {                      // launched on [(VOCAB - 1) / (THREADS * COLUMNS) + 1, R]
    Choice *choices, *best;                     // [R]
    int* finished;                              // [R]
    const float* logits;                        // [R, VOCAB]
    const Choice* cuts;                         // [R] if FILTERED
    const int* target_ids;                      // [VOCAB] if MAPPED
    const long long* requests;                  // [S]
    const int *length, *active, *active_count;  // [S], [S], [1]
    int rows_per_slot, offset, seed_low, seed_high;
    const long long* masks;  // [S, TREE_ROWS] only if TREE_ROWS
};

// How many positions behind the slot's first row its row t stands.
__device__ __forceinline__ int behind_first(const DrawRowsArguments& args, int slot, int t) {
#if TREE_ROWS
    return __popcll(args.masks[slot * TREE_ROWS + t]) - 1;
#else
    return t;
#endif
}

__device__ __forceinline__ Numbers numbers_of(const DrawRowsArguments& args, int row) {
    const int slot = args.active[row / args.rows_per_slot], t = row % args.rows_per_slot;
    const unsigned long long request = (unsigned long long)args.requests[slot];
    const int position = args.length[slot] + 1 + args.offset + behind_first(args, slot, t);
    return {uint2{(unsigned)args.seed_low, (unsigned)args.seed_high}, (unsigned)position, (unsigned)request,
            (unsigned)(request >> 32)};
}

__device__ __forceinline__ int token_of(const DrawRowsArguments& args, int column) {
    return MAPPED ? args.target_ids[column] : column;
}

extern "C" __global__ __launch_bounds__(THREADS) void draw_rows(const __grid_constant__ DrawRowsArguments args) {
    const int row = blockIdx.y;
    await_previous();
    let_next_start();
    if (row >= *args.active_count * args.rows_per_slot) return;
    const Choice greedy = args.choices[row];
    if (!is_finite(greedy)) return;
    const float* logits = args.logits + (long long)row * VOCAB;
    const float largest = value_of(greedy);
    const Numbers numbers = numbers_of(args, row);
    const Rank cut = FILTERED ? args.cuts[row] : 0;
    const Columns columns;

    float logit[COLUMNS], highest[COLUMNS], most = NO_SCORE;
#pragma unroll
    for (int i = 0; i < COLUMNS; ++i) logit[i] = columns[i] < VOCAB ? logits[columns[i]] : NO_SCORE;
#pragma unroll
    for (int i = 0; i < COLUMNS; i += 2) {
        uint4 block = {};
#pragma unroll
        for (int j = i; j < i + 2; ++j) {
            highest[j] = NO_SCORE;
            if (columns[j] >= VOCAB || (FILTERED && rank_of(logit[j], columns[j]) < cut)) continue;
            const int token = token_of(args, columns[j]);
            if (MAPPED || FILTERED || j == i) block = numbers.block_of(token, (Purpose)PURPOSE);  // else the pair shares one
            highest[j] = highest_score(logit[j], largest, words_of(block, token));
            most = highest[j] > most ? highest[j] : most;
        }
    }

    auto run = [&](int i) {
        const int token = token_of(args, columns[i]);
        return runner(exact_score(logit[i], largest, words_of(numbers.block_of(token, (Purpose)PURPOSE), token)), columns[i]);
    };
    const Runner best = winner_of_warp(highest, most, so_far(args.best + row), run);
    if (threadIdx.x % 32 == 0 && best > so_far(args.best + row)) atomicMax(args.best + row, best);

    if (is_last_of_row(args.finished + row, gridDim.x)) {
        const int drawn = column_of(so_far(args.best + row));
        args.best[row] = 0;
        args.choices[row] = choice(logits[drawn], drawn);
    }
}
