// sums[a][i] = the sum of a row's weights: what a column's weight is divided by to be its probability. i < DRAFTS: of the
// target's row that judges draft token i, over the columns that filters leave. Others: of the draft's row that token i - DRAFTS
// was drawn from.
//
// In float64 and always in the same order: columns of a thread, threads of a warp, warps of a block, blocks of a row. So a sum
// depends on its row alone. THREADS · COLUMNS neighbouring columns per block, grid (blocks of the target's row, rows).
// `partial` [row][BLOCKS]: sums of blocks. `finished` [row] is zero between launches.
#include "dependent.cuh"
#include "drafted.cuh"
#include "last_block.cuh"

#define FULL_WARP 0xffffffffu
#define BLOCKS ((VOCAB + THREADS * COLUMNS - 1) / (THREADS * COLUMNS))

static_assert(DRAFT_VOCAB <= VOCAB, "DRAFT_VOCAB must be at most VOCAB: a draft's row has no more blocks");

struct SumRowsArguments {  // launched on [(VOCAB - 1) / (THREADS * COLUMNS) + 1, 2 * S * DRAFTS] for DRAFTS + 1 rows of a slot
    double *sums, *partial;     // [2 * S * DRAFTS], [2 * S * DRAFTS, (VOCAB - 1) / (THREADS * COLUMNS) + 1]
    int* finished;              // [2 * S * DRAFTS]
    const float* logits;        // [R, VOCAB]
    const Choice* choices;      // [R]
    const Choice* cuts;         // [R] if FILTERED
    const float* draft_logits;  // [DRAFTS, SLOTS, DRAFT_VOCAB]
    const int *draft_columns, *drafts, *active, *active_count;  // [VOCAB], [S, MAX_ROWS], [S], [1]
};

// Of the block, in thread 0.
__device__ __forceinline__ double block_total(double sum) {
    __shared__ double of_warp[THREADS / 32];
#pragma unroll
    for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(FULL_WARP, sum, step);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sum;
    __syncthreads();
    double total = 0;
#pragma unroll
    for (int warp = 0; warp < THREADS / 32; ++warp) total += of_warp[warp];
    return total;
}

extern "C" __global__ __launch_bounds__(THREADS) void sum_rows(const __grid_constant__ SumRowsArguments args) {
    const int a = blockIdx.y / (2 * DRAFTS), i = blockIdx.y % (2 * DRAFTS);
    const bool of_target = i < DRAFTS;
    const int width = of_target ? VOCAB : DRAFT_VOCAB, blocks = (width + THREADS * COLUMNS - 1) / (THREADS * COLUMNS);
    await_previous();
    let_next_start();
    if (a >= *args.active_count || blockIdx.x >= blocks) return;
    const Drafted drafted(args, a, args.active[a], i % DRAFTS);
    const float* row = of_target ? drafted.judge : drafted.source;
    const float reference = of_target ? drafted.largest : drafted.drawn;
    double sum = 0;
#pragma unroll
    for (int n = 0; n < COLUMNS; ++n) {
        const int column = (blockIdx.x * COLUMNS + n) * THREADS + threadIdx.x;
        if (column >= width) continue;
        const float logit = row[column];
        if (!of_target || drafted.leaves(logit, column)) sum += weight_of(logit, reference);
    }
    sum = block_total(sum);
    double* partial = args.partial + (long long)blockIdx.y * BLOCKS;
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
    if (is_last_of_row(args.finished + blockIdx.y, blocks)) {
        double total = 0;
#pragma unroll 8
        for (int block = 0; block < blocks; ++block) total += __ldcg(partial + block);
        args.sums[blockIdx.y] = total;
    }
}
