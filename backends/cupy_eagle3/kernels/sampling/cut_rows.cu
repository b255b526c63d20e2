// cuts[row] = the rank of the last column that top-k, top-p and min-p leave: those of this rank and above may be drawn.
//
// One block per row. Top-k keeps the TOP_K largest logits and all that equal the last of them. Of what that leaves, top-p keeps
// the likeliest columns until they have TOP_P of the mass; of equal logits the lower columns first. Min-p keeps what has MIN_P
// of the largest's probability or more. This is the order of specgate/sampling/target.py.
//
// How a place in the order is found: weigh_rows has counted the row's buckets. The one that holds the place is divided by
// further digits of the rank, 11, 11 and 10 bits of the logit and then, among equal logits, 9 and 9 of the column; each digit
// takes one pass over the row. All sums are of whole numbers.
//
// The buckets of the row are zero again afterwards.
#include "dependent.cuh"
#include "masses.cuh"

#define GROUP 32
#define DIGITS 2048

static_assert(DIGITS == BUCKETS, "digits and buckets are counted in the same arrays");

struct CutRowsArguments {
    Choice* cuts;
    long long* masses;
    int* counts;
    const float* logits;
    const Choice* choices;
    const int* active_count;
    int rows_per_slot;
};

const bool TAKES_K = 0 < TOP_K && TOP_K < VOCAB;
const bool TAKES_P = TOP_P < 1;

// Columns and their mass, by bucket or digit, the largest logits first; and sums of 32 neighbours.
struct Histogram {
    Mass masses[DIGITS];
    int counts[DIGITS];
    Mass group_masses[DIGITS / GROUP];
    int group_counts[DIGITS / GROUP];
};

// How much comes before a place, and with it.
struct Found {
    int bin, count_before, count;
    Mass mass_before, mass;
};

// What is looked for: the column with which there are `count` columns (top-k) or, where that is 0, the mass `mass` (top-p).
struct Wanted {
    int count;
    double mass;

    __device__ __forceinline__ bool reached(int columns, Mass weight) const {
        return count ? columns >= count : (double)weight >= mass;
    }
};

__shared__ Histogram bins;
__shared__ Found found;

__device__ __forceinline__ void sum_groups() {
    __syncthreads();
    for (int group = threadIdx.x; group < DIGITS / GROUP; group += THREADS) {
        int columns = 0;
        Mass weight = 0;
        for (int i = 0; i < GROUP; ++i) {
            const int bin = group * GROUP + (i + group) % GROUP;  // no two threads in the same bank
            columns += bins.counts[bin];
            weight += bins.masses[bin];
        }
        bins.group_counts[group] = columns;
        bins.group_masses[group] = weight;
    }
    __syncthreads();
}

__device__ __forceinline__ Mass mass_in_all() {
    Mass mass = 0;
    for (int group = 0; group < DIGITS / GROUP; ++group) mass += bins.group_masses[group];
    return mass;
}

// The first of `size` places with which `wanted` is reached, or the last; `count` and `mass` grow by what comes before it.
__device__ __forceinline__ int first_place(const int* counts, const Mass* masses, int size, const Wanted& wanted, int& count,
                                           Mass& mass) {
    int place = 0;
    for (; place < size - 1 && !wanted.reached(count + counts[place], mass + masses[place]); ++place) {
        count += counts[place];
        mass += masses[place];
    }
    return place;
}

// The first bin with which `wanted` is reached, after `count` columns of mass `mass` that come before all bins. Thread 0 finds
// it, first among groups; the same in all threads.
__device__ __forceinline__ Found first_bin(const Wanted& wanted, int count, Mass mass) {
    if (threadIdx.x == 0) {
        int bin = GROUP * first_place(bins.group_counts, bins.group_masses, DIGITS / GROUP, wanted, count, mass);
        bin += first_place(bins.counts + bin, bins.masses + bin, GROUP, wanted, count, mass);
        found = {bin, count, bins.counts[bin], mass, bins.masses[bin]};
    }
    __syncthreads();
    const Found place = found;
    __syncthreads();  // before it is overwritten
    return place;
}

// Bins of one digit of the rank, for the columns of `bucket` whose rank agrees with `rank` above that digit.
__device__ __forceinline__ void count_digit(const float* logits, float largest, int bucket, Rank rank, int shift, int bits) {
    __syncthreads();
    for (int i = threadIdx.x; i < DIGITS; i += THREADS) bins.masses[i] = 0, bins.counts[i] = 0;
    __syncthreads();
    const unsigned mask = (1u << bits) - 1;
#pragma unroll 4
    for (int column = threadIdx.x; column < VOCAB; column += THREADS) {
        const float logit = logits[column];
        if (bucket_of(logit, largest) != bucket) continue;
        const Rank own = rank_of(logit, column);
        if ((own ^ rank) >> (shift + bits)) continue;
        const int digit = (int)(mask - ((unsigned)(own >> shift) & mask));
        atomicAdd(bins.counts + digit, 1);
        atomicAdd(bins.masses + digit, mass_of(logit, largest));
    }
}

// The buckets that weigh_rows has counted.
__device__ __forceinline__ void load_buckets(const CutRowsArguments& args) {
    __syncthreads();
    for (int i = threadIdx.x; i < BUCKETS; i += THREADS) {
        bins.masses[i] = (Mass)args.masses[(long long)blockIdx.x * BUCKETS + i];
        bins.counts[i] = args.counts[(long long)blockIdx.x * BUCKETS + i];
    }
    sum_groups();
}

// The lowest rank that is kept, once the buckets are loaded; `kept` becomes the mass of all that are. With `ties`, columns of
// equal logits are kept or dropped together.
__device__ __forceinline__ Rank lowest_kept(const float* logits, float largest, const Wanted& wanted, bool ties, Mass& kept) {
    const int SHIFTS[] = {COLUMN_BITS + 21, COLUMN_BITS + 10, COLUMN_BITS, 9, 0}, BITS[] = {11, 11, 10, 9, 9};
    Found at = first_bin(wanted, 0, 0);
    const int bucket = at.bin;
    Rank rank = 0;
    for (int level = 0; level < 5; ++level) {
        // From the fourth on, the logit is known to its last bit: one column has it, or all that have it are kept.
        if (level >= 3 && (ties || at.count == 1)) break;
        count_digit(logits, largest, bucket, rank, SHIFTS[level], BITS[level]);
        sum_groups();
        at = first_bin(wanted, at.count_before, at.mass_before);
        rank |= (Rank)((1u << BITS[level]) - 1 - (unsigned)at.bin) << SHIFTS[level];
    }
    kept = at.mass_before + at.mass;
    return rank;
}

// The lowest rank of a logit that has MIN_P of the largest's probability.
__device__ __forceinline__ Rank least_likely(float largest) {
    return rank_of(__double2float_ru((double)largest + TEMPERATURE * log((double)MIN_P)), LAST_COLUMN);
}

extern "C" __global__ __launch_bounds__(THREADS, 1) void cut_rows(const CutRowsArguments args) {
    const int row = blockIdx.x;
    await_previous();
    let_next_start();
    if (row >= *args.active_count * args.rows_per_slot || !is_finite(args.choices[row])) return;
    const float* logits = args.logits + (long long)row * VOCAB;
    const float largest = value_of(args.choices[row]);
    Rank cut = 0;
    Mass kept = 0, unused = 0;
    if (TAKES_K || TAKES_P) {
        load_buckets(args);
        kept = mass_in_all();
    }
    if (TAKES_K) cut = lowest_kept(logits, largest, {TOP_K, 0}, true, kept);
    if (TAKES_P) {
        if (TAKES_K) load_buckets(args);
        cut = lowest_kept(logits, largest, {0, TOP_P * (double)kept}, false, unused);
    }
    if (MIN_P > 0) cut = max(cut, least_likely(largest));
    if (threadIdx.x == 0) args.cuts[row] = cut;
    for (int i = threadIdx.x; (TAKES_K || TAKES_P) && i < BUCKETS; i += THREADS) {
        args.masses[(long long)row * BUCKETS + i] = 0;
        args.counts[(long long)row * BUCKETS + i] = 0;
    }
}
