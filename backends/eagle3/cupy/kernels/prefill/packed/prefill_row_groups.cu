// The pairs of rows and their experts sorted, by their expert and then by their row, and cut into row groups (row_group.cuh).
// It stands in place of a sort: keys are few.
//
// A block has an expert. It counts the pairs of all, so that it knows where those of its own begin, and then finds these. An
// expert's pairs are split into as few row groups as can be, which have nearly as many rows each.
//
// Layouts: chosen, place [pair]: an expert, and where the pair lies among the sorted ones.
#include "block.cuh"
#include "dependent.cuh"
#include "row_group.cuh"

static_assert(EXPERTS <= THREADS, "a thread has an expert");

struct PrefillRowGroupsArguments {              // launched on [EXPERTS]
    int *row_groups, *row_group_count, *place;  // [min(pairs, EXPERTS) + pairs / ROW_GROUP, 4 + ROW_GROUP], [1], [R, PER_TOKEN]
    const int* chosen;                          // [R, PER_TOKEN]
    int pairs;
};

__shared__ int counts[EXPERTS];

__device__ __forceinline__ int row_groups_of(int count) { return (count + ROW_GROUP - 1) / ROW_GROUP; }

// By warps, since many neighbours may have the same expert.
__device__ __forceinline__ void count_pairs(const int* chosen, int pairs) {
    for (int n = threadIdx.x; n < EXPERTS; n += THREADS) counts[n] = 0;
    __syncthreads();
    const int lane = threadIdx.x % 32;
    for (int n = threadIdx.x; n - lane < pairs; n += THREADS) {
        const int expert = n < pairs ? chosen[n] : -1;
        const unsigned same = __match_any_sync(FULL_WARP, expert);
        if (expert >= 0 && (same & ((1u << lane) - 1)) == 0) atomicAdd(counts + expert, __popc(same));
    }
    __syncthreads();
}

// Over all threads: exact, as what is added up is far below 2^24.
__device__ __forceinline__ int total(int value) { return (int)block_sum<THREADS>((float)value); }

// The sum over all threads before this one.
__device__ __forceinline__ int before_this(int value) {
    __shared__ int of_warps[THREADS / 32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int sum = value;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(FULL_WARP, sum, step);
        if (lane >= step) sum += other;
    }
    if (lane == 31) of_warps[warp] = sum;
    __syncthreads();
    for (int n = 0; n < warp; ++n) sum += of_warps[n];
    return sum - value;
}

// How `count` pairs are split: the first row groups have `longer` pairs, the others eight fewer, and the last one what is left.
struct Split {
    int many, longer, begin_of_shorter;

    __device__ __forceinline__ explicit Split(int count) : many(row_groups_of(count)) {
        const int eights = (count + 7) / 8, each = eights / max(many, 1), extra = eights % max(many, 1);
        longer = (each + 1) * 8;
        begin_of_shorter = extra * longer;
    }

    // Where the `n`-th row group begins.
    __device__ __forceinline__ int begin(int n) const {
        const int extra = begin_of_shorter / longer;
        return n < extra ? n * longer : begin_of_shorter + (n - extra) * (longer - 8);
    }

    // The row group of the expert's `n`-th pair.
    __device__ __forceinline__ int row_group(int n) const {
        return n < begin_of_shorter ? n / longer : (begin_of_shorter / longer) + (n - begin_of_shorter) / (longer - 8);
    }
};

extern "C" __global__ __launch_bounds__(THREADS) void prefill_row_groups(const PrefillRowGroupsArguments args) {
    await_previous();
    const int expert = blockIdx.x, own = threadIdx.x;
    count_pairs(args.chosen, args.pairs);
    const int its = own < EXPERTS ? counts[own] : 0, before = own < expert ? its : 0;
    const int start = total(before), first = total(row_groups_of(before)), all = total(row_groups_of(its));
    if (expert == 0 && own == 0) *args.row_group_count = all;

    const int count = counts[expert];
    const Split split(count);
    RowGroup* row_groups = reinterpret_cast<RowGroup*>(args.row_groups) + first;
    for (int n = own; n < split.many; n += THREADS) {
        const int begin = split.begin(n);
        row_groups[n].expert = expert;
        row_groups[n].start = start + begin;
        row_groups[n].count = min(split.begin(n + 1), count) - begin;
    }

    // A thread has neighbouring pairs.
    const int each = (args.pairs + THREADS - 1) / THREADS, from = min(own * each, args.pairs),
              to = min(from + each, args.pairs);
    int found = 0;
    for (int n = from; n < to; ++n) found += args.chosen[n] == expert;
    int at = before_this(found);
    for (int n = from; n < to; ++n) {
        if (args.chosen[n] != expert) continue;
        const int row_group = split.row_group(at);
        row_groups[row_group].rows[at - split.begin(row_group)] = n / PER_TOKEN;
        args.place[n] = start + at++;
    }
}
