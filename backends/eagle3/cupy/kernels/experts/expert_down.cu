// The second product of a mixture of experts, and the sum over a row's experts: stream[row] += Σ over the places of a row, the
// likeliest first, of weight · (act[pair] · downᵀ + bias). How it multiplies: expert_matmul.cuh.
//
// A pair's part goes to `parts`. Whoever has finished a group of columns for a row group counts it in `finished`, and the last
// block of a group adds the parts up: always in the order of the places, whoever comes last. It also leaves the pre-norm input
// of the next norm, normed = stream · norm_weight, and its squares; and it clears the count.
//
// With PARTIAL, other GPUs have the rest of k: `stream` becomes the sum over the places, to which nothing is added, and no norm
// is prepared. That is for all_reduce.cu to do.
//
// The routing is made, and the first weights are requested, while the product before this one still runs: whoever wrote the
// logits has ended before that product let this kernel start.
//
// Layouts: act [pair][K_IN] float16; parts [pair][N_OUT] float32; stream [row][N_OUT] float32; squares [row][N_OUT / 8]; weight
// as packing.py leaves it; bias [expert][N_OUT]; logits [row][EXPERTS]; finished [N_OUT / (16 · WEIGHT_TILES)].
// touched[step][layer] becomes the number of experts that have rows.
#include "bf16.cuh"
#include "counted.cuh"
#include "dependent.cuh"
#include "expert_matmul.cuh"
#include "prefetch.cuh"

#ifndef PARTIAL
#define PARTIAL 0
#endif

static_assert(TILES_OF_EXPERT * 16 == N_OUT, "N_OUT must be a multiple of 16: a tile has 16 rows");

struct ExpertDownArguments {      // launched on [BLOCKS] where R <= MOST && !PAIRED_ROWS
    float* stream;                // [R, N_OUT]
    bf16* normed;                 // [R, N_OUT] if !PARTIAL
    float* squares;               // [R, N_OUT / 8] if !PARTIAL
    float* parts;                 // [R * PER_TOKEN, N_OUT]
    int* finished;                // [TILES_OF_EXPERT]
    const fp16* act;              // [R * PER_TOKEN, K_IN]
    const unsigned char* weight;  // [EXPERTS, TILES_OF_EXPERT, TILE_BYTES]
    const bf16* bias;             // [EXPERTS, N_OUT]
    const bf16* norm_weight;      // [N_OUT] if !PARTIAL
    const float* logits;          // [R, EXPERTS]
    const int* active_count;      // [1]
    int* touched;                 // [_, layers]
    const int* step;              // [1]
    int rows_per_slot, layer, layers;
};

const int COLUMNS = 16 * WEIGHT_TILES;  // of an item

// The `n`-th that a thread finishes of an item: one column of `parts` for one row of the row group.
const int FINISHED = WEIGHT_TILES * 128, ROUNDS = (FINISHED + THREADS - 1) / THREADS;
struct Finisher {
    const int number, tile, element, part, row, feature;

    __device__ __forceinline__ explicit Finisher(int n)
        : number(n * THREADS + threadIdx.x),
          tile(number / 128),
          element(number % 128),
          part(element / 32),
          row(element % 4 * 2 + part % 2),  // of the row group
          feature(element % 32 / 4 + part / 2 * 8) {}

    __device__ __forceinline__ bool exists() const { return FINISHED % THREADS == 0 || number < FINISHED; }

    // Column of parts; all threads that finish nothing have one, too.
    __device__ __forceinline__ int column(int group) const {
        return (group * WEIGHT_TILES + tile % WEIGHT_TILES) * 16 + feature;
    }
};

const int NOTHING = -1;

// The group of columns of which all row groups' parts are there, or NOTHING; items take turns.
__shared__ int complete[2];

// By one thread, after a barrier that follows this block's own parts for the columns of `group`. Of MANY_ROWS a block counts
// often, and what it has of them in the L1 cache stays there. Of few rows it counts a few times: one fence is faster than two.
__device__ __forceinline__ void count_parts(int* finished, int group, int turn) {
    const int before = MANY_ROWS ? counted_unseen(finished + group) : counted_before(finished + group);
    const bool last = before == routing.row_group_count - 1;
    if (last) {
        if (MANY_ROWS) see_counted();
        finished[group] = 0;
    }
    complete[turn % 2] = last ? group : NOTHING;
}

// A column of a row per lane: few rows take a round or two so. Eight neighbouring lanes have the columns of one sum of squares.
__device__ __forceinline__ void add_columns(const ExpertDownArguments& args, int group, int rows, const Thread& me) {
    for (int n = threadIdx.x; n - me.lane < rows * COLUMNS; n += THREADS) {
        const int row = n / COLUMNS, column = group * COLUMNS + n % COLUMNS;
        const bool exists = row < rows;
        const long long at = (long long)row * N_OUT + column;
        float value = 0;
        if (exists) {
            // All of it is requested before the first store, behind which the compiler could not move a load.
            const float before = PARTIAL ? 0 : args.stream[at];
            const float norm_weight = PARTIAL ? 0 : to_float(args.norm_weight[column]);
            float part[PER_TOKEN];
#pragma unroll
            for (int place = 0; place < PER_TOKEN; ++place)
                part[place] = __ldcg(args.parts + ((long long)row * PER_TOKEN + place) * N_OUT + column);
            float sum = part[0];
#pragma unroll
            for (int place = 1; place < PER_TOKEN; ++place) sum += part[place];
            value = PARTIAL ? sum : before + sum;
            args.stream[at] = value;
            if (!PARTIAL) args.normed[at] = to_bf16(value * norm_weight);
        }
        if (PARTIAL) continue;
        float square = value * value;
#pragma unroll
        for (int step = 4; step; step /= 2) square += __shfl_xor_sync(FULL_WARP, square, step);
        if (exists && column % 8 == 0) args.squares[at / 8] = square;
    }
}

__device__ __forceinline__ float4 sum_of(const float4& a, const float4& b) {
    return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}

// The square of one of four columns, and that of the column four further, which is the neighbouring lane's.
__device__ __forceinline__ float two_squares(float value) {
    const float square = value * value;
    return square + __shfl_xor_sync(FULL_WARP, square, 1);
}

// The same bits by four columns of a row per lane: many rows take a quarter of the rounds. Two neighbours have the columns of
// one sum of squares.
__device__ __forceinline__ void add_quads(const ExpertDownArguments& args, int group, int rows, const Thread& me) {
    const int QUADS = COLUMNS / 4;
#pragma unroll 1
    for (int n = threadIdx.x; n - me.lane < rows * QUADS; n += THREADS) {
        const int row = n / QUADS, column = group * COLUMNS + n % QUADS * 4;
        const bool exists = row < rows;
        const long long at = (long long)row * N_OUT + column;
        float4 value = {};
        if (exists) {
            // All of it is requested before the first store, behind which the compiler could not move a load.
            const float4 before = PARTIAL ? float4{} : *reinterpret_cast<const float4*>(args.stream + at);
            const uint2 weights = PARTIAL ? uint2{} : *reinterpret_cast<const uint2*>(args.norm_weight + column);
            float4 part[PER_TOKEN];
#pragma unroll
            for (int place = 0; place < PER_TOKEN; ++place) {
                const float* from = args.parts + ((long long)row * PER_TOKEN + place) * N_OUT + column;
                part[place] = __ldcg(reinterpret_cast<const float4*>(from));
            }
            value = part[0];
#pragma unroll
            for (int place = 1; place < PER_TOKEN; ++place) value = sum_of(value, part[place]);
            if (!PARTIAL) value = sum_of(before, value);
            *reinterpret_cast<float4*>(args.stream + at) = value;
            if (!PARTIAL)
                *reinterpret_cast<uint2*>(args.normed + at) = {
                    pack_bf16(value.x * to_float((bf16)(weights.x & 0xffff)), value.y * to_float((bf16)(weights.x >> 16))),
                    pack_bf16(value.z * to_float((bf16)(weights.y & 0xffff)), value.w * to_float((bf16)(weights.y >> 16)))};
        }
        if (PARTIAL) continue;
        const float squares[] = {two_squares(value.x), two_squares(value.y), two_squares(value.z), two_squares(value.w)};
        if (exists && column % 8 == 0) args.squares[at / 8] = (squares[0] + squares[2]) + (squares[1] + squares[3]);
    }
}

// stream += the sum of the parts, and the next norm's input, for COLUMNS columns of all rows. Of partial sums, the sum alone.
__device__ __forceinline__ void add_parts(const ExpertDownArguments& args, int group, int rows, const Thread& me) {
    MANY_ROWS ? add_quads(args, group, rows, me) : add_columns(args, group, rows, me);
}

extern "C" __global__ __launch_bounds__(THREADS,
                                        BLOCKS_PER_SM) void expert_down(const __grid_constant__ ExpertDownArguments args) {
    const Thread me;
    const int count = *args.active_count * args.rows_per_slot;
    if (threadIdx.x < 2) complete[threadIdx.x] = NOTHING;
    route_rows(args.logits, count, me);
    ExpertRing ring(args.weight, me);
    Walk walk;
    Source here = ring.source(walk);
    ring.fill(here);
    // A line of the norm's weights, which memory alone has: whoever adds up would wait for it.
    const int LINE_WEIGHTS = LINE / sizeof(bf16);
    if (!PARTIAL && threadIdx.x == 0 && blockIdx.x * LINE_WEIGHTS < N_OUT)
        prefetch_line(args.norm_weight + blockIdx.x * LINE_WEIGHTS);
    await_previous();
    let_next_start();
    if (blockIdx.x == 0 && threadIdx.x == 0 && count > 0)
        args.touched[(long long)*args.step * args.layers + args.layer] = routing.touched_count;

    // An item is counted during the next one, and added up during the one after that, if it was the last: the barriers are
    // those that an item has anyway, and only one thread waits for memory.
    const bool counts = threadIdx.x == THREADS - 1;
    int done = 0, before = NOTHING;  // items so far, and the last one's group
#pragma unroll 1
    while (!walk.is_over()) {
        const Item item = walk.item();
        walk.advance();
        const RowGroup& row_group = routing.row_groups[item.row_group];
        const RowGroupRows rows(args.act, row_group, [](int pair) { return pair; }, me);
        float biases[ROUNDS];
#pragma unroll
        for (int n = 0; n < ROUNDS; ++n)
            biases[n] = to_float(args.bias[(long long)row_group.expert * N_OUT + Finisher(n).column(item.group)]);

        Sums sums = {};
        multiply_item(sums, ring, rows, here, ring.source(walk));
        const SharedSums shared = shared_sums(done);
        store_sums(shared, sums, me);
        if (complete[done % 2] != NOTHING) add_parts(args, complete[done % 2], count, me);
        if (before != NOTHING && counts) count_parts(args.finished, before, done + 1);
#pragma unroll
        for (int n = 0; n < ROUNDS; ++n) {
            const Finisher own(n);
            if (!own.exists() || own.row >= row_group.count) continue;
            const int pair = routing.members[row_group.start + own.row];
            args.parts[(long long)pair * N_OUT + own.column(item.group)] =
                (add_warps(shared, own.tile, own.element) + biases[n]) * routing.weight_of[pair];
        }
        before = item.group;
        ++done;
    }
    await_copies<0>();
    __syncthreads();
    if (complete[done % 2] != NOTHING) add_parts(args, complete[done % 2], count, me);
    if (before != NOTHING && counts) count_parts(args.finished, before, done + 1);
    __syncthreads();
    if (complete[(done + 1) % 2] != NOTHING) add_parts(args, complete[(done + 1) % 2], count, me);
}
