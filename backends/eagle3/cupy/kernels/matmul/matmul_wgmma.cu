// out[m][n] = Σ_k x[m][k] · weight[n][k] by the products of a warpgroup (sm_90a): for steps of many rows m.
//
// `mma` takes its operands from registers, and with 64 rows of x warps load more of these than a multiprocessor has time for.
// `wgmma` takes both from shared memory, where the GPU copies them by itself. 64 rows of weight are operand A of a warpgroup,
// and rows of x are columns of its sums. The sums differ in their last bits from those of `mma`: an engine takes the one or the
// other for all of its steps (`tuned/lookup.py`).
//
// The parts of the work:
//   load       Requests: one thread of a warp of its own asks for pieces, 64 k of BOXES · 64 rows of weight and of all rows
//              of x. STAGES of them are under way. The weights of the first do not wait for the kernel before
//   multiply   multiply_pieces: each other warpgroup has a box of weight
//   reduce     sums of the blocks of a cluster, in their order
//   epilogue   matmul_epilogue.cuh
//
// Chains: a tensor core cuts what it adds to a large sum. So a sum runs over CHAIN pieces, and these sums are added as float32.
//
// CLUSTER: so many blocks, which run at once, share k, each some neighbouring pieces. CHAIN and CLUSTER are fixed for a weight,
// whatever the rows.
//
// BOXES, STAGES, ROW_TILES (the rows of a block / 8, rounded up to twos), ROW_GROUPS and DELAY_DEPENDENTS only move work.
// Layouts, epilogues, PRE_NORM_X, ROW_GROUPS and DELAY_DEPENDENTS are as in `matmul_rows.cu`.
#include "argmax.cuh"
#include "bf16.cuh"
#include "block.cuh"
#include "bulk_copy.cuh"
#include "cluster.cuh"
#include "dependent.cuh"
#include "mma.cuh"
#include "prefetch.cuh"
#include "wgmma.cuh"

#define PLAIN 0
#define RESIDUAL 1
#define SWIGLU 2

static_assert(!TAKES_ARGMAX || EPILOGUE == PLAIN, "TAKES_ARGMAX needs results as they are: EPILOGUE PLAIN");
static_assert(!HAS_BIAS || EPILOGUE != SWIGLU, "HAS_BIAS needs one sum per result: EPILOGUE PLAIN or RESIDUAL");
static_assert(!FEEDS_NORM || N_OUT % 8 == 0, "N_OUT must be a multiple of 8 where a norm follows");
static_assert(K_IN % 32 == 0, "K_IN must be a multiple of 32");
static_assert(EPILOGUE != SWIGLU || BOXES % 2 == 0, "BOXES must be even: one of gates and one of ups");

struct WgmmaArguments {
    TensorMap weight;         // [(1 + (EPILOGUE == SWIGLU)) * N_OUT, K_IN] in boxes of [64, 64]
    TensorMap x;              // [R, K_IN] in boxes of [8 * ROW_TILES, 64]
    void* out;                // [R, N_OUT]
    const float* squares;     // [R, K_IN / 8] if PRE_NORM_X
    bf16* normed;             // [R, N_OUT] if FEEDS_NORM
    float* normed_squares;    // [R, N_OUT / 8] if FEEDS_NORM
    const bf16* norm_weight;  // [N_OUT] if FEEDS_NORM
    Choice* choices;          // if TAKES_ARGMAX
    const int* active_count;  // [1]
    int rows_per_slot;
    float eps;
    const bf16* bias;  // [N_OUT] if HAS_BIAS
};

// Warps that multiply and finish, four for each box; behind them is that which loads.
const int WARPS = 4 * BOXES, FINISHING = 32 * WARPS, THREADS = FINISHING + 32;
// Along k: pieces, and the most of a block.
const int PIECES = (K_IN + 63) / 64, EACH_PIECES = (PIECES + CLUSTER - 1) / CLUSTER;
static_assert((CLUSTER - 1) * EACH_PIECES < PIECES, "every block of a cluster needs a piece");
// Bytes of 64 rows by 64 k, and of a stage: boxes of weight, and one of x.
const unsigned BOX = 64 * 128, WEIGHT_BYTES = BOXES * BOX, X_BYTES = ROW_TILES * 8 * 128, STAGE = WEIGHT_BYTES + X_BYTES;
// Along the columns of out: tiles of 16 rows of weight, as in matmul_rows.cu.
const int WEIGHT_TILES = 4 * BOXES, TILE_COLUMNS = EPILOGUE == SWIGLU ? 8 : 16, COLUMNS = WEIGHT_TILES * TILE_COLUMNS;
// Tiles of rows that this block finishes, output tiles of these, and how many of them a thread has a part in.
const int OWN_ROW_TILES = (ROW_TILES + CLUSTER - 1) / CLUSTER, TILES = OWN_ROW_TILES * WEIGHT_TILES, EACH = TILES / BOXES;
const int AT_ONCE = CLUSTER == 1 ? 8 : HAS_BIAS ? 2 : 4;  // there are registers for so many at a time
static_assert(EACH % AT_ONCE == 0, "a thread finishes as many tiles every time");
const int BLOCKS_PER_SM = BOXES <= 2 ? 2 : 1;
const int STORED = 1;  // sums of a block

#include "own_rows.cuh"
#include "rms_factors.cuh"

// The ring with its barriers, and the sums in its place once the last piece has been multiplied.
extern __shared__ __align__(1024) uint4 memory[];

// [1][ROW_TILES · WEIGHT_TILES][128], as in matmul_many.cu.
typedef float (*SharedSums)[ROW_TILES * WEIGHT_TILES][128];

#include "cluster_totals.cuh"

__device__ __forceinline__ MatmulArguments without_maps(const WgmmaArguments& args) {
    return {args.out,         nullptr,      nullptr,           args.squares,       args.normed, args.normed_squares,
            args.norm_weight, args.choices, args.active_count, args.rows_per_slot, args.eps,    args.bias};
}

// ---- load -------------------------------------------------------------------------------------------------------------

// A stage is filled by what announces its weights and what announces its x, and free once all warps have multiplied it.
struct Ring {
    const unsigned address = (unsigned)__cvta_generic_to_shared(memory);

    __device__ __forceinline__ unsigned stage(int number) const { return address + number * STAGE; }
    __device__ __forceinline__ unsigned filled(int number) const { return address + STAGES * STAGE + 8 * number; }
    __device__ __forceinline__ unsigned freed(int number) const { return filled(STAGES + number); }
};

// What one thread requests for the pieces of this block.
struct Requests {
    const WgmmaArguments& args;
    const Ring& ring;
    const int group, first, pieces;

    __device__ __forceinline__ Requests(const WgmmaArguments& args, const Ring& ring, int group, int pieces)
        : args(args), ring(ring), group(group), first(rank() * EACH_PIECES), pieces(pieces) {}

    __device__ __forceinline__ int at_once() const { return pieces < STAGES ? pieces : STAGES; }

    __device__ __forceinline__ void make_barriers() const {
#pragma unroll
        for (int stage = 0; stage < STAGES; ++stage)
            make_barrier(ring.filled(stage), 2), make_barrier(ring.freed(stage), WARPS);
        show_barriers();
    }

    // Boxes of SWIGLU take turns: gates, and the ups beside them.
    __device__ __forceinline__ void request_weights(int piece) const {
        const int stage = piece % STAGES;
        arrive_announcing(ring.filled(stage), WEIGHT_BYTES);
#pragma unroll
        for (int box = 0; box < BOXES; ++box) {
            const int of_up = EPILOGUE == SWIGLU && box % 2 ? N_OUT : 0, before = EPILOGUE == SWIGLU ? box / 2 : box;
            copy_box(ring.stage(stage) + box * BOX, args.weight, of_up + group * COLUMNS + 64 * before, 64 * (first + piece),
                     ring.filled(stage), read_once());
        }
    }

    __device__ __forceinline__ void request_x(int piece) const {
        const int stage = piece % STAGES;
        arrive_announcing(ring.filled(stage), X_BYTES);
        copy_box(ring.stage(stage) + WEIGHT_BYTES, args.x, first_row_of_group(), 64 * (first + piece), ring.filled(stage),
                 read_often());
    }

    // After the weights of the first pieces.
    __device__ __forceinline__ void others() const {
        for (int piece = 0; piece < at_once(); ++piece) request_x(piece);
#pragma unroll 1
        for (int piece = STAGES; piece < pieces; ++piece) {
            await_phase(ring.freed(piece % STAGES), (piece / STAGES - 1) % 2);
            request_weights(piece);
            request_x(piece);
        }
        if (DELAY_DEPENDENTS) let_next_start();
    }

    // Where no row is multiplied: a block must not end before what it has requested is there.
    __device__ __forceinline__ void abandon() const {
        for (int piece = 0; piece < at_once(); ++piece) arrive(ring.filled(piece)), await_phase(ring.filled(piece), 0);
    }
};

// ---- multiply ---------------------------------------------------------------------------------------------------------

__device__ __forceinline__ void clear(GroupSums& sums) {
#pragma unroll
    for (int t = 0; t < ROW_TILES; ++t)
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[t][i] = 0;
}

// The sums of this warpgroup's box over the pieces of this block.
__device__ __forceinline__ void multiply_pieces(GroupSums& total, const Ring& ring, int pieces, const Thread& me) {
    GroupSums sums;
    clear(total), clear(sums);
    int stage = 0;
    unsigned parity = 0;
#pragma unroll 1
    for (int piece = 1; piece <= pieces; ++piece) {
        await_phase(ring.filled(stage), parity);
        const unsigned long long weight = box_at(ring.stage(stage) + me.warp / 4 * BOX),
                                 x = box_at(ring.stage(stage) + WEIGHT_BYTES);
        begin_products();
#pragma unroll
        for (int k = 0; k < 4; ++k) multiply_boxes(sums, weight + 2 * k, x + 2 * k);
        await_products();
        if (me.lane == 0) arrive(ring.freed(stage));
        if (piece % CHAIN == 0 || piece == pieces) {
#pragma unroll
            for (int t = 0; t < ROW_TILES; ++t)
#pragma unroll
                for (int i = 0; i < 4; ++i) total[t][i] += sums[t][i];
            clear(sums);
        }
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
}

// ---- reduce -----------------------------------------------------------------------------------------------------------

// Element 32 · i + l of output tile t · WEIGHT_TILES + j is C's c_i of lane l: row tile t times weight tile j. Of SWIGLU a
// weight tile has eight gates and the eight ups beside them: from two warpgroups, half a tile of each.
__device__ __forceinline__ void store_sums(SharedSums shared, const GroupSums& sums, const Thread& me) {
    const int box = me.warp / 4, warp = me.warp % 4;
#pragma unroll
    for (int t = 0; t < ROW_TILES; ++t)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int tile = EPILOGUE == SWIGLU ? box / 2 * 8 + 2 * warp + i / 2 : box * 4 + warp;
            const int element = EPILOGUE == SWIGLU ? box % 2 * 64 + i % 2 * 32 : i * 32;
            shared[0][t * WEIGHT_TILES + tile][element + me.lane] = sums[t][i];
        }
}

// ---- the kernel -------------------------------------------------------------------------------------------------------

extern "C" __global__ CLUSTER_OF(CLUSTER)
    __launch_bounds__(THREADS, BLOCKS_PER_SM) void matmul_wgmma(const __grid_constant__ WgmmaArguments all) {
    const Thread me;
    const Ring ring;
    const int group = blockIdx.x / (CLUSTER * ROW_GROUPS), pieces = min(EACH_PIECES, PIECES - rank() * EACH_PIECES);
    const bool loads = threadIdx.x == FINISHING, finishes = me.warp < WARPS;
    const Requests requests(all, ring, group, pieces);
    if (loads) {
        prefetch_map(all.weight), prefetch_map(all.x);
        requests.make_barriers();
        for (int piece = 0; piece < requests.at_once(); ++piece) requests.request_weights(piece);
    }
    const Finisher own(me);
    prefetch_columns(FEEDS_NORM, all.norm_weight, group);
    prefetch_columns(HAS_BIAS, all.bias, group);
    // No kernel directly before a product changes how many rows there are.
    const int in_all = *all.active_count * all.rows_per_slot,
              in_group = max(0, min(ROW_TILES * 8, in_all - first_row_of_group()));
    const int own_rows = max(0, min(OWN_ROW_TILES * 8, in_group - rank() * OWN_ROW_TILES * 8)), tiles = (in_group + 7) / 8;
    const int count = finishes ? own_rows : 0;
    __syncthreads();  // the barriers are there
    if (!DELAY_DEPENDENTS) let_next_start();
    await_previous();
    if (in_group == 0) {  // so it is for the whole cluster
        if (loads) requests.abandon();
        return;
    }

    const MatmulArguments args = of_own_rows(without_maps(all));
    GroupSums sums;
    if (loads) requests.others();
    __syncwarp();  // a cluster's barriers take whole warps
    if (finishes) {
        // While weights are still on their way.
        if (PRE_NORM_X) compute_rms_factors(args.squares, count, args.eps, me);
        const unsigned least = load_to_beat(args.choices, count);
        if (TAKES_ARGMAX && threadIdx.x < ROW_TILES * 8) to_beat[threadIdx.x] = least;
        multiply_pieces(sums, ring, pieces, me);
    }

    Early early[AT_ONCE];
    const auto load_all_early = [&](int from) {
#pragma unroll
        for (int e = 0; e < AT_ONCE; ++e)
            early[e] = load_early(args, own.cell(group, own.first_tile + (from + e) * BOXES, count));
    };
    __syncthreads();  // nobody still needs the ring
    const SharedSums shared = reinterpret_cast<SharedSums>(memory);
    if (finishes) store_sums(shared, sums, me);
    load_all_early(0);  // the sums' registers are free
    sync_cluster<CLUSTER>();
#pragma unroll 1
    for (int from = 0; from < EACH; from += AT_ONCE) {
        if (from) load_all_early(from);
        Total totals[AT_ONCE];
#pragma unroll
        for (int e = 0; e < AT_ONCE; ++e) {
            const int tile = rank() * TILES + own.first_tile + (from + e) * BOXES;
            totals[e] = {0, 0};
            if (tile < tiles * WEIGHT_TILES && (EPILOGUE != SWIGLU || own.part < 2))
                totals[e] = add_chains(shared, tile, own.element);
        }
#pragma unroll
        for (int e = 0; e < AT_ONCE; ++e) {
            const int tile = own.first_tile + (from + e) * BOXES;
            if (tile / WEIGHT_TILES * 8 >= count) break;
            if (EPILOGUE == SWIGLU && own.part >= 2) break;  // the other half of a tile belongs to the same columns
            finish(args, own.cell(group, tile, count), totals[e], true, early[e], me);
        }
    }
    arrive_in_cluster(), await_cluster();  // nobody ends while others read its sums
}
