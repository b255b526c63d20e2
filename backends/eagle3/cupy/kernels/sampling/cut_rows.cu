// cuts[row] = the rank of the last column that top-k, top-p and min-p leave: those of this rank and above may be drawn.
//
// Top-k keeps the TOP_K largest logits and all that equal the last of them. Of what that leaves, top-p keeps the likeliest
// columns until they have TOP_P of the mass; of equal logits the lower columns first. Min-p keeps what has MIN_P of the
// largest's probability or more. This is the order of specgate/sampling/target.py.
//
// weigh_rows has found the bucket in which top-k or top-p ends. THREADS · COLUMNS neighbouring columns per block, grid (blocks,
// rows): blocks list the columns that matter, of that bucket or, for top-k, down to it. They are few, and the last block of a
// row finds the end among them. What would not fit into the list it reads from the row itself, which takes longer and leaves
// the same. For min-p alone there is one block per row, and nothing to look at.
//
// `list_sizes` [row] and `finished` [row] are zero between launches.
#include "bins.cuh"
#include "dependent.cuh"
#include "last_block.cuh"

#define AT_ONCE 8

struct CutRowsArguments {        // launched on [(TOP_K > 0 || TOP_P < 1) * ((VOCAB - 1) / (THREADS * COLUMNS)) + 1, R]
    Choice* cuts;                // [R]
    const long long* edges;      // [R, 3] if TOP_K || TOP_P < 1
    Rank* listed;                // [R, LISTED] if TOP_K || TOP_P < 1
    int *list_sizes, *finished;  // [R] if TOP_K || TOP_P < 1
    const float* logits;         // [R, VOCAB]
    const Choice* choices;       // [R]
    const int* active_count;     // [1]
    int rows_per_slot;
};

__device__ __forceinline__ float value_of_rank(Rank rank) { return value_of(rank >> COLUMN_BITS << 32); }

// The columns of a row that matter, in any order.
struct Columns {
    const Rank* listed;  // nullptr where not all are listed
    const float* logits;
    float largest;
    Edge edge;
    int size;  // of the list, or of the row

    // 0, which no column has: it does not matter.
    __device__ __forceinline__ Rank operator[](int i) const {
        if (listed) return __ldcg(listed + i);
        return edge.needs(bucket_of(logits[i], largest)) ? rank_of(logits[i], i) : 0;
    }

    // Call `visit` with the rank of every column; all threads of the block share them.
    template <typename Visit>
    __device__ __forceinline__ void each(const Visit& visit) const {
        for (int first = threadIdx.x; first < size; first += AT_ONCE * THREADS) {
            Rank ranks[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) ranks[i] = first + i * THREADS < size ? (*this)[first + i * THREADS] : 0;
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i)
                if (ranks[i]) visit(ranks[i]);
        }
    }
};

// What a column is ordered by. TIES: columns of equal logits are kept or dropped together.
template <bool TIES>
__device__ __forceinline__ Rank key_of(Rank rank) {
    return TIES ? rank >> COLUMN_BITS : rank;
}

// The least and the largest key.
template <bool TIES>
__device__ __forceinline__ void span_of(const Columns& columns, Rank& least, Rank& most) {
    __shared__ Rank span[2];
    if (threadIdx.x == 0) span[0] = ~0ull, span[1] = 0;
    __syncthreads();
    least = ~0ull, most = 0;
    columns.each([&](Rank rank) {
        least = min(least, key_of<TIES>(rank));
        most = max(most, key_of<TIES>(rank));
    });
#pragma unroll
    for (int step = 16; step; step /= 2) {
        least = min(least, __shfl_xor_sync(FULL_WARP, least, step));
        most = max(most, __shfl_xor_sync(FULL_WARP, most, step));
    }
    if (threadIdx.x % 32 == 0) atomicMin(span, least), atomicMax(span + 1, most);
    __syncthreads();
    least = span[0], most = span[1];
}

// The lowest rank that is kept: that of the first column, or of all that equal it, with which `reached`. `amount`, what comes
// before all of `columns`, becomes what is kept.
//
// The span of the keys is divided into bins, the bin with the end into bins again, until one key is left in it. Keys are seldom
// evenly spread, but the bins of so short a span mostly have one column or none.
template <bool TIES, typename Reached>
__device__ __forceinline__ Rank lowest_kept(const Columns& columns, Amount& amount, const Reached& reached) {
    Rank least, most;
    span_of<TIES>(columns, least, most);
    for (;;) {
        const int shift = max(0, 64 - __clzll((long long)(most - least)) - BIN_BITS);
        bins.clear();
        __syncthreads();
        columns.each([&](Rank rank) {
            const Rank key = key_of<TIES>(rank);
            if (key < least || key > most) return;
            const int bin = (int)((most - key) >> shift);
            bins.add_columns(bin, 1);
            if (TAKES_P) bins.add_mass(bin, mass_of(value_of_rank(rank), columns.largest));
        });
        const Found end = first_bin(amount, reached);
        most -= (Rank)end.bin << shift;
        least = max(least, most - min(most, ((Rank)1 << shift) - 1));
        amount = end.before;
        if (shift == 0 || end.own.columns == 1) {
            amount = end.before + end.own;
            return TIES ? least << COLUMN_BITS : least;  // the other columns of this bin's width are lower, or before
        }
    }
}

// List the columns of this block that matter.
__device__ __forceinline__ void list_columns(const CutRowsArguments& args, const Columns& columns) {
    __shared__ Rank own[THREADS * COLUMNS];
    __shared__ int size, first;
    if (threadIdx.x == 0) size = 0;
    const int column = blockIdx.x * COLUMNS * THREADS + threadIdx.x;
    Rank ranks[COLUMNS];
#pragma unroll
    for (int i = 0; i < COLUMNS; ++i) ranks[i] = column + i * THREADS < VOCAB ? columns[column + i * THREADS] : 0;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < COLUMNS; ++i)
        if (ranks[i]) own[atomicAdd(&size, 1)] = ranks[i];
    __syncthreads();
    if (threadIdx.x == 0 && size) first = atomicAdd(args.list_sizes + blockIdx.y, size);
    __syncthreads();
    for (int i = threadIdx.x; i < size; i += THREADS)
        if (first + i < LISTED) args.listed[(long long)blockIdx.y * LISTED + first + i] = own[i];
}

// The lowest rank of a logit that has MIN_P of the largest's probability.
__device__ __forceinline__ Rank least_likely(float largest) {
    return rank_of(__double2float_ru((double)largest + TEMPERATURE * log((double)MIN_P)), LAST_COLUMN);
}

extern "C" __global__ __launch_bounds__(THREADS) void cut_rows(const CutRowsArguments args) {
    const int row = blockIdx.y;
    await_previous();
    let_next_start();
    if (row >= *args.active_count * args.rows_per_slot || !is_finite(args.choices[row])) return;
    const float largest = value_of(args.choices[row]);
    Rank cut = 0;
    if (TAKES_K || TAKES_P) {
        const long long* found = args.edges + 3ll * row;
        const Edge edge = {(int)found[0], (Mass)found[1], (Mass)found[2]};
        Columns columns = {nullptr, args.logits + (long long)row * VOCAB, largest, edge, VOCAB};
        list_columns(args, columns);
        if (!is_last_block_of_row(args.finished + row, gridDim.x)) return;
        const int size = __ldcg(args.list_sizes + row);
        if (size <= LISTED) columns.listed = args.listed + (long long)row * LISTED, columns.size = size;

        Amount kept = {};
        Mass all = edge.all;
        if (TAKES_K) {
            cut = lowest_kept<true>(columns, kept, [](const Amount& with, const Amount&) { return with.columns >= TOP_K; });
            all = kept.mass;
        }
        if (TAKES_P) {
            kept = {0, TAKES_K ? 0 : edge.before};
            const double wanted = TOP_P * (double)all;
            cut = lowest_kept<false>(columns, kept,
                                     [=](const Amount& with, const Amount&) { return (double)with.mass >= wanted; });
        }
        if (threadIdx.x == 0) args.list_sizes[row] = 0;
    }
    if (MIN_P > 0) cut = max(cut, least_likely(largest));
    if (threadIdx.x == 0) args.cuts[row] = cut;
}
