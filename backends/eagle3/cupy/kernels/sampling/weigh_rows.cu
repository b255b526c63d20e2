// edges[row] = the bucket of the row in which top-k or top-p ends: masses.cuh. With both it is that of top-k, since what top-p
// keeps depends on what top-k leaves.
//
// THREADS · COLUMNS neighbouring columns per block, grid (blocks, rows). Blocks add up columns (for top-k) or masses by bucket,
// and the last block of a row finds the edge. All sums are of whole numbers: they do not depend on how columns are divided
// among blocks. choices[row] tells the largest logit. `sums` [row][bucket] and `finished` [row] are zero between launches.
#include "bins.cuh"
#include "dependent.cuh"
#include "last_block.cuh"

struct WeighRowsArguments {   // launched on [(VOCAB - 1) / (THREADS * COLUMNS) + 1, R]
    long long *edges, *sums;  // [R, 3], [R, 2048]
    int* finished;            // [R]
    const float* logits;      // [R, VOCAB]
    const Choice* choices;    // [R]
    const int* active_count;  // [1]
    int rows_per_slot;
};

__device__ __forceinline__ Mass sum_of(int bucket) { return TAKES_K ? (Mass)bins.columns[bucket] : bins[bucket].mass; }

extern "C" __global__ __launch_bounds__(THREADS) void weigh_rows(const WeighRowsArguments args) {
    const int row = blockIdx.y;
    bins.clear();
    await_previous();
    let_next_start();
    if (row >= *args.active_count * args.rows_per_slot || !is_finite(args.choices[row])) return;
    const float* logits = args.logits + (long long)row * VOCAB;
    const float largest = value_of(args.choices[row]);
    const int first = blockIdx.x * COLUMNS * THREADS + threadIdx.x;
    float logit[COLUMNS];
#pragma unroll
    for (int i = 0; i < COLUMNS; ++i) logit[i] = first + i * THREADS < VOCAB ? logits[first + i * THREADS] : largest;
    __syncthreads();
    int below = 0;  // columns of the last bucket: of most rows the most, all of one address, and without mass
#pragma unroll
    for (int i = 0; i < COLUMNS; ++i) {
        if (first + i * THREADS >= VOCAB) continue;
        const int bucket = bucket_of(logit[i], largest);
        if (bucket == LAST_BUCKET) {
            ++below;
        } else if (TAKES_K) {
            bins.add_columns(bucket, 1);
        } else {
            bins.add_mass(bucket, mass_of(logit[i], largest));
        }
    }
    if (TAKES_K && below) bins.add_columns(LAST_BUCKET, below);
    __syncthreads();

    Mass* sums = reinterpret_cast<Mass*>(args.sums) + (long long)row * BUCKETS;
    for (int i = threadIdx.x; i < BUCKETS; i += THREADS)
        if (const Mass sum = sum_of(i)) atomicAdd(sums + i, sum);
    if (!is_last_block_of_row(args.finished + row, gridDim.x)) return;
    for (int i = threadIdx.x; i < BUCKETS; i += THREADS) {
        const Mass sum = __ldcg(sums + i);
        bins.put(i, TAKES_K ? Amount{(int)sum, 0} : Amount{0, sum});
        sums[i] = 0;
    }
    const Found edge = first_bin({}, [](const Amount& with, const Amount& all) {
        return TAKES_K ? with.columns >= TOP_K : (double)with.mass >= TOP_P * (double)all.mass;
    });
    if (threadIdx.x == 0) {
        long long* found = args.edges + 3ll * row;
        found[0] = edge.bin, found[1] = (long long)edge.before.mass, found[2] = (long long)edge.all.mass;
    }
}
