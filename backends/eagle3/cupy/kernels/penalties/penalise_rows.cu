// logits[row] after bias and penalties, and choices[row] = the greedy choice among them, as if the LM head had left them so.
//
// The order of specgate/sampling/target.py: the bias, where there is one; the repetition penalty on tokens of prompt and
// output; presence and frequency penalty on tokens of the output. All of it in float64, rounded to float32 once.
//
// Row t of a slot has the slot's first t drafts in its output: drafts [slot][MAX_ROWS]; with TREE_ROWS (0: a chain) those of
// the nodes that its mask has: masks [slot][TREE_ROWS], bit n for draft n - 1. THREADS · COLUMNS neighbouring columns
// per block, grid (blocks, rows). `best` [row] and `finished` [row] are zero between launches.
#include "argmax.cuh"
#include "dependent.cuh"
#include "history.cuh"
#include "last_block.cuh"

#ifndef TREE_ROWS
#define TREE_ROWS 0
#endif
#define FULL_WARP 0xffffffffu
#define NO_TOKEN -1

struct PenaliseRowsArguments {                  // launched on [(VOCAB - 1) / (THREADS * COLUMNS) + 1, R]
    float* logits;                              // [R, VOCAB]
    Choice *choices, *best;                     // [R]
    int* finished;                              // [R]
    const int* history;                         // [S, VOCAB]
    const float* bias;                          // [VOCAB] if BIASED
    const int *drafts, *active, *active_count;  // [S, MAX_ROWS], [S], [1]
    int rows_per_slot;
    const long long* masks;  // [S, TREE_ROWS] only if TREE_ROWS
};

// The drafts before a row, which count as if they were emitted.
struct Drafts {
    int tokens[MAX_ROWS];

#if TREE_ROWS
    __device__ __forceinline__ Drafts(const int* drafts, unsigned long long mask) {
#pragma unroll
        for (int t = 0; t < MAX_ROWS; ++t) tokens[t] = mask >> 1 >> t & 1 ? drafts[t] : NO_TOKEN;
    }
#else
    __device__ __forceinline__ Drafts(const int* drafts, int count) {
#pragma unroll
        for (int t = 0; t < MAX_ROWS; ++t) tokens[t] = t < count ? drafts[t] : NO_TOKEN;
    }
#endif

    __device__ __forceinline__ int count(int token) const {
        int found = 0;
#pragma unroll
        for (int t = 0; t < MAX_ROWS - 1; ++t) found += tokens[t] == token;
        return found;
    }
};

// `emitted`: how often the text has the token, with the drafts before the row.
__device__ __forceinline__ double penalised(double score, int emitted, bool prompt) {
    const double REPEATED = REPETITION, PRESENT = PRESENCE, FREQUENT = FREQUENCY;
    if (emitted || prompt) score = score < 0 ? score * REPEATED : score / REPEATED;
    if (emitted) score = score - PRESENT - FREQUENT * emitted;
    return score;
}

extern "C" __global__ __launch_bounds__(THREADS) void penalise_rows(const PenaliseRowsArguments args) {
    const int row = blockIdx.y;
    await_previous();
    let_next_start();
    if (row >= *args.active_count * args.rows_per_slot) return;
    const int slot = args.active[row / args.rows_per_slot];
    const int t = row % args.rows_per_slot;
#if TREE_ROWS
    const Drafts drafts(args.drafts + slot * MAX_ROWS, (unsigned long long)args.masks[slot * TREE_ROWS + t]);
#else
    const Drafts drafts(args.drafts + slot * MAX_ROWS, t);
#endif
    const unsigned* history = reinterpret_cast<const unsigned*>(args.history) + (long long)slot * VOCAB;
    float* logits = args.logits + (long long)row * VOCAB;
    Choice best = 0;
#pragma unroll
    for (int i = 0; i < COLUMNS; ++i) {
        const int column = (blockIdx.x * COLUMNS + i) * THREADS + threadIdx.x;
        if (column >= VOCAB) continue;
        const float logit = logits[column];
        const unsigned entry = history[column];
        const double biased = BIASED ? (double)logit + args.bias[column] : logit;
        const float left = (float)penalised(biased, emitted_of(entry) + drafts.count(column), in_prompt(entry));
        if (left != logit) logits[column] = left;
        best = max(best, choice(left, column));
    }
#pragma unroll
    for (int step = 16; step; step /= 2) best = max(best, __shfl_xor_sync(FULL_WARP, best, step));
    if (threadIdx.x % 32 == 0) atomicMax(args.best + row, best);
    if (is_last_of_row(args.finished + row, gridDim.x)) {
        args.choices[row] = so_far(args.best + row);
        args.best[row] = 0;
    }
}
