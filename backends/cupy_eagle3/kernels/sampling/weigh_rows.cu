// counts[row][bucket] and masses[row][bucket] += the columns of the row's logits in each bucket, and their mass: masses.cuh.
//
// THREADS · COLUMNS neighbouring columns per block, grid (blocks, rows). choices[row] tells the largest logit. Sums of whole
// numbers: they do not depend on how columns are divided among blocks.
#include "dependent.cuh"
#include "masses.cuh"

struct WeighRowsArguments {
    long long* masses;
    int* counts;
    const float* logits;
    const Choice* choices;
    const int* active_count;
    int rows_per_slot;
};

extern "C" __global__ __launch_bounds__(THREADS) void weigh_rows(const WeighRowsArguments args) {
    __shared__ Mass masses[BUCKETS];
    __shared__ int counts[BUCKETS];
    const int row = blockIdx.y;
    for (int i = threadIdx.x; i < BUCKETS; i += THREADS) masses[i] = 0, counts[i] = 0;
    await_previous();
    let_next_start();
    if (row >= *args.active_count * args.rows_per_slot || !is_finite(args.choices[row])) return;
    __syncthreads();
    const float* logits = args.logits + (long long)row * VOCAB;
    const float largest = value_of(args.choices[row]);
    int below = 0;  // columns of the last bucket: of most rows the most, all of one address
    for (int i = 0; i < COLUMNS; ++i) {
        const int column = (blockIdx.x * COLUMNS + i) * THREADS + threadIdx.x;
        if (column >= VOCAB) continue;
        const float logit = logits[column];
        const int bucket = bucket_of(logit, largest);
        if (bucket == BUCKETS - 1) {
            ++below;
            continue;
        }
        atomicAdd(counts + bucket, 1);
        atomicAdd(masses + bucket, mass_of(logit, largest));
    }
    if (below) atomicAdd(counts + BUCKETS - 1, below);
    __syncthreads();
    for (int i = threadIdx.x; i < BUCKETS; i += THREADS) {
        if (counts[i]) atomicAdd(args.counts + (long long)row * BUCKETS + i, counts[i]);
        if (masses[i]) atomicAdd(reinterpret_cast<Mass*>(args.masses) + (long long)row * BUCKETS + i, masses[i]);
    }
}
