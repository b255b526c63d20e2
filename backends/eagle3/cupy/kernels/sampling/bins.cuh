// Columns in bins, in the order in which filters keep them, and the bin in which a filter ends. One set of bins per block.
//
// A mass has two words of its own: atomic operations in shared memory add 32 bits at once, but 64 bits only by trying again
// until no other thread came between, which columns of one bin do all the time.
#pragma once
#include "masses.cuh"

#define FULL_WARP 0xffffffffu
#define BINS 2048
#define BIN_BITS 11

static_assert(BUCKETS == BINS, "buckets are counted in bins");

// A number of columns, and their mass.
struct Amount {
    int columns;
    Mass mass;

    __device__ __forceinline__ Amount operator+(const Amount& other) const {
        return {columns + other.columns, mass + other.mass};
    }
};

// A bin, what comes before it, what is in it, and what is in all bins.
struct Found {
    int bin;
    Amount before, own, all;
};

struct Bins {
    unsigned columns[BINS], low[BINS], high[BINS];
    Amount of_warp[THREADS / 32];
    Found found;

    __device__ __forceinline__ void clear() {
        for (int i = threadIdx.x; i < BINS; i += THREADS) columns[i] = 0, low[i] = 0, high[i] = 0;
    }
    __device__ __forceinline__ void add_columns(int bin, int count) { atomicAdd(columns + bin, (unsigned)count); }
    __device__ __forceinline__ void add_mass(int bin, Mass mass) {
        const unsigned added = (unsigned)mass, sum = atomicAdd(low + bin, added) + added;
        atomicAdd(high + bin, (unsigned)(mass >> 32) + (sum < added));  // whoever makes the low word overflow carries
    }
    __device__ __forceinline__ void put(int bin, const Amount& amount) {
        columns[bin] = (unsigned)amount.columns, low[bin] = (unsigned)amount.mass, high[bin] = (unsigned)(amount.mass >> 32);
    }
    __device__ __forceinline__ Amount operator[](int bin) const {
        return {(int)columns[bin], (Mass)high[bin] << 32 | low[bin]};
    }
};

__shared__ Bins bins;

__device__ __forceinline__ Amount warp_sums(Amount sum) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const int columns = __shfl_up_sync(FULL_WARP, sum.columns, step);
        const Mass mass = __shfl_up_sync(FULL_WARP, sum.mass, step);
        if (lane >= step) sum = sum + Amount{columns, mass};
    }
    return sum;
}

// The first bin with which `reached(what comes before it and is in it, what is in all bins)`, or the last. `before` comes
// before all bins, where nothing is reached. All threads call it, and get the same.
template <typename Reached>
__device__ __forceinline__ Found first_bin(const Amount& before, const Reached& reached) {
    const int EACH = (BINS + THREADS - 1) / THREADS, WARPS = THREADS / 32, lane = threadIdx.x % 32;
    const int first = EACH * threadIdx.x, end = min(first + EACH, BINS);
    __syncthreads();
    Amount own = {};
    for (int i = 0; i < EACH; ++i) {
        const int bin = first + (i + lane / (32 / EACH > 0 ? 32 / EACH : 1)) % EACH;  // no two lanes in the same bank
        if (bin < BINS) own = own + bins[bin];
    }
    const Amount sum = warp_sums(own);
    if (lane == 31) bins.of_warp[threadIdx.x / 32] = sum;
    __syncthreads();
    Amount all = before, ahead = before;
#pragma unroll
    for (int warp = 0; warp < WARPS; ++warp) {
        if (warp == threadIdx.x / 32) ahead = all + sum;
        all = all + bins.of_warp[warp];
    }
    // Of the threads whose bins are not all passed by, the first.
    const Amount earlier = {ahead.columns - own.columns, ahead.mass - own.mass};
    const bool passed = !reached(ahead, all), behind = threadIdx.x > 0 && reached(earlier, all);
    if (!behind && (!passed || threadIdx.x == THREADS - 1)) {
        Amount so_far = earlier;
        int bin = min(first, BINS - 1);
        for (; bin < end - 1 && !reached(so_far + bins[bin], all); ++bin) so_far = so_far + bins[bin];
        bins.found = {bin, so_far, bins[bin], all};
    }
    __syncthreads();
    return bins.found;
}
