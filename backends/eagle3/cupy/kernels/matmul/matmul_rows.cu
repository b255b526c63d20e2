// out[m][n] = Σ_k x[m][k] · weight[n][k] for the few rows m of a decode step, on tensor cores, with float32 sums.
//
// What one block does: it multiplies all rows of x with WEIGHT_TILES tiles of weight, 16 rows of weight each, and does so
// PASSES times, each time with other rows of weight. Within a pass:
//   load       weight_ring.cuh: each warp copies its share of the weights into shared memory, several turns ahead
//   multiply   multiply_pass: tiles of weight are operand A of the tensor core, eight rows of x are the columns of B
//   reduce     sum_of_warps: the warps have split k between them; their sums are added in the order of the warps
//   epilogue   finish: what EPILOGUE, FEEDS_NORM and TAKES_ARGMAX make of a sum
//
// Layouts: x [rows][K_IN] bfloat16; weight [N_OUT][K_IN] bfloat16, for SWIGLU [2 · N_OUT][K_IN], gate rows before up rows;
// out [rows][N_OUT], bfloat16 for SWIGLU, else float32.
//
// How k is split: a chunk is 32 neighbouring k, a slice CHUNKS_PER_TURN neighbouring chunks. Warp w multiplies the slices
// w, w + WARPS, w + 2 · WARPS, …, one per turn. Neither this split nor the order of additions depends on the number of rows,
// so a row's result is the same, bit for bit, alone or among others. WARPS and CHUNKS_PER_TURN are therefore fixed for a
// weight's shape (N_OUT, K_IN). WEIGHT_TILES, PASSES, STAGES, X_IN_REGISTERS, DELAY_DEPENDENTS, ROW_TILES (the rows of a
// block / 8, rounded up) and ROW_GROUPS only move work and may be chosen freely.
//
// ROW_GROUPS: more rows than a block has registers for are shared among so many blocks, which multiply the same weights. They
// are neighbours in the grid, so that the L2 cache serves all but the first of them.
//
// X_IN_REGISTERS: every thread loads its share of x once and keeps it for all passes, so that no turn waits for x.
// DELAY_DEPENDENTS: the next kernel may start when this one has requested its last weights; without it, at once.
//
// Pre-norm x (PRE_NORM_X): the rows of x still lack their RMSNorm's division. Since a factor per row does not change which
// products are added, the sums are multiplied by 1 / sqrt(mean(x²) + eps) instead. `squares` [rows][K_IN / 8] holds the sums
// of squares of eight elements each.
//
// Epilogues:
//   PLAIN      out = sum, float32
//   RESIDUAL   out += sum, float32
//   SWIGLU     out = silu(gate) · up, bfloat16; a tile holds eight gate rows and the eight up rows that belong to them
//   FEEDS_NORM, with RESIDUAL: also leaves the pre-norm input of the next norm, normed = out · norm_weight, and its squares
//   TAKES_ARGMAX, with PLAIN: also raises `choices`[row], zero before, to the greedy choice among the row's results
//   HAS_BIAS, with PLAIN or RESIDUAL: bias[column] is added to the sum
#include "argmax.cuh"
#include "async_copy.cuh"
#include "bf16.cuh"
#include "block.cuh"
#include "dependent.cuh"
#include "mma.cuh"

#define PLAIN 0
#define RESIDUAL 1
#define SWIGLU 2

static_assert(K_IN % 32 == 0, "K_IN must be a multiple of 32: one chunk");
static_assert(WARPS % 4 == 0, "WARPS must be a multiple of 4: 128 threads finish a tile");
static_assert(!TAKES_ARGMAX || EPILOGUE == PLAIN, "TAKES_ARGMAX needs results as they are: EPILOGUE PLAIN");
static_assert(!HAS_BIAS || EPILOGUE != SWIGLU, "HAS_BIAS needs one sum per result: EPILOGUE PLAIN or RESIDUAL");
static_assert(!FEEDS_NORM || N_OUT % 8 == 0, "N_OUT must be a multiple of 8 where a norm follows");

const int THREADS = WARPS * 32;
// Along k: chunks, slices, the slices of a warp in a pass, and the warps that have any.
const int CHUNKS = K_IN / 32;
const int SLICES = (CHUNKS + CHUNKS_PER_TURN - 1) / CHUNKS_PER_TURN;
const int TURNS = (SLICES + WARPS - 1) / WARPS;
const int BUSY_WARPS = SLICES < WARPS ? SLICES : WARPS;
// Along the columns of out: those that a tile of weight gives, and the groups of WEIGHT_TILES tiles. Block b takes the groups
// b, b + GRID, …
const int TILE_COLUMNS = EPILOGUE == SWIGLU ? 8 : 16;
const int GROUPS = (N_OUT + WEIGHT_TILES * TILE_COLUMNS - 1) / (WEIGHT_TILES * TILE_COLUMNS);
const int GRID = (GROUPS + PASSES - 1) / PASSES;
// Output tiles of a pass, and those whose sums are in shared memory at a time.
const int TILES = ROW_TILES * WEIGHT_TILES;
const int TILES_PER_ROUND = TILES < 4 ? TILES : 4;
// Every round has all its tiles, so the second bound of the loop over them can go. With three weight tiles that saves the
// register with which an SM would have no room for a block of attention beside this one; with two it would cost a spill.
const bool WHOLE_ROUNDS = WEIGHT_TILES > 2 && TILES % TILES_PER_ROUND == 0;
// Whether x is requested before its weights have arrived: where registers are left for that.
const bool X_BEFORE_WEIGHTS = CHUNKS_PER_TURN * ROW_TILES <= 8;

// Blocks that shall fit an SM at once, which limits their registers. Few rows and tiles need few registers; a thread that keeps
// x in registers has 128.
__host__ __device__ constexpr int blocks_per_sm() {
    if (X_IN_REGISTERS) return 16 / WARPS;
    if (ROW_TILES > 1 || WEIGHT_TILES > 2) return 1;
    return WARPS == 16 ? 2 : WARPS == 8 ? 3 : 4;
}
const int BLOCKS_PER_SM = blocks_per_sm();

// Which block this is among those that divide the weights, and the first row that it multiplies.
__device__ __forceinline__ int own_block() { return ROW_GROUPS > 1 ? blockIdx.y : blockIdx.x; }
__device__ __forceinline__ int first_row() { return ROW_GROUPS > 1 ? blockIdx.x * ROW_TILES * 8 : 0; }

#include "weight_ring.cuh"

// What a launch passes, for the rows of this block.
#include "matmul_arguments.cuh"

// ---- load: x ----------------------------------------------------------------------------------------------------------

// One slice of x as operand B: rows 8 · t + g.
typedef uint4 XSlice[CHUNKS_PER_TURN][ROW_TILES];
// What a thread holds of x at a time: all its slices of a pass, or one.
typedef XSlice XRegisters[X_IN_REGISTERS ? TURNS : 1];

struct XRows {
    const Thread& me;
    const bf16* mine;        // row g, at this lane's k
    const int count, tiles;  // rows, and tiles of eight rows

    // Chunk s of a slice. Rows that do not exist, and chunks beyond the end of k, are zero.
    __device__ __forceinline__ void load_chunk(XSlice& into, int slice, int s) const {
        const int chunk = slice * CHUNKS_PER_TURN + s;
#pragma unroll
        for (int t = 0; t < ROW_TILES; ++t) {
            into[s][t] = {};
            if (t * 8 + me.g < count && (CHUNKS % CHUNKS_PER_TURN == 0 || chunk < CHUNKS))
                into[s][t] = *reinterpret_cast<const uint4*>(mine + (long long)t * 8 * K_IN + chunk * 32);
        }
    }

    __device__ __forceinline__ void load_slice(XSlice& into, int slice) const {
#pragma unroll
        for (int s = 0; s < CHUNKS_PER_TURN; ++s) load_chunk(into, slice, s);
    }

    // Before the first pass: all slices of this warp, or the first one where it comes before its weights.
    __device__ __forceinline__ void load_first(XRegisters& x) const {
        if (!X_IN_REGISTERS && X_BEFORE_WEIGHTS && me.warp < SLICES) load_slice(x[0], me.warp);
#pragma unroll
        for (int turn = 0; X_IN_REGISTERS && turn < TURNS; ++turn)
            if (turn * WARPS + me.warp < SLICES) load_slice(x[X_IN_REGISTERS ? turn : 0], turn * WARPS + me.warp);
    }
};

#include "rms_factors.cuh"

// ---- multiply ---------------------------------------------------------------------------------------------------------

// A warp's sums, operand C of every output tile.
typedef float Sums[WEIGHT_TILES][ROW_TILES][4];

// One turn of a warp: sums += x · weightᵀ over the k of `slice`. `x_slice` is where the slice of x is, or is loaded to.
__device__ __forceinline__ void multiply_slice(Sums& sums, WeightRing& ring, const XRows& rows, XSlice& x_slice, int slice,
                                               bool& first) {
    WeightSlice a;
    if (!first) {
        // x is requested before the next weights: it would wait behind them.
        if (!X_IN_REGISTERS && X_BEFORE_WEIGHTS) rows.load_slice(x_slice, slice);
        ring.refill();
    }
    first = false;
    ring.load(a);
#pragma unroll
    for (int s = 0; s < CHUNKS_PER_TURN; ++s) {
        if (!X_IN_REGISTERS && !X_BEFORE_WEIGHTS) rows.load_chunk(x_slice, slice, s);
        if (CHUNKS % CHUNKS_PER_TURN && slice * CHUNKS_PER_TURN + s >= CHUNKS) continue;
#pragma unroll
        for (int t = 0; t < ROW_TILES; ++t)
            if (ROW_TILES == 1 || t < rows.tiles)
#pragma unroll
                for (int j = 0; j < WEIGHT_TILES; ++j) mma_k32(sums[j][t], a[s][j][0], a[s][j][1], x_slice[s][t]);
    }
}

__device__ __forceinline__ void multiply_pass(Sums& sums, WeightRing& ring, const XRows& rows, XRegisters& x, bool& first) {
    const int warp = rows.me.warp;
    if (X_IN_REGISTERS) {  // unrolled: registers have no index
#pragma unroll
        for (int turn = 0; turn < TURNS; ++turn)
            if (turn * WARPS + warp < SLICES)
                multiply_slice(sums, ring, rows, x[X_IN_REGISTERS ? turn : 0], turn * WARPS + warp, first);
    } else {
#pragma unroll 1
        for (int slice = warp; slice < SLICES; slice += WARPS) multiply_slice(sums, ring, rows, x[0], slice, first);
    }
}

// ---- reduce -----------------------------------------------------------------------------------------------------------

// The sums of all warps in shared memory, TILES_PER_ROUND output tiles at a time. Output tile t · WEIGHT_TILES + j is row
// tile t times weight tile j; element 32 · i + l of it is C's c_i of lane l.
typedef float (*SharedSums)[TILES_PER_ROUND][128];

__device__ __forceinline__ void store_sums(SharedSums shared, const Sums& sums, int from, const Thread& me) {
#pragma unroll
    for (int n = 0; n < TILES_PER_ROUND; ++n)
        if (from + n < TILES && me.warp < BUSY_WARPS)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                shared[me.warp][n][32 * i + me.lane] = sums[(from + n) % WEIGHT_TILES][(from + n) / WEIGHT_TILES][i];
}

#include "matmul_total.cuh"

// An element's total over the warps, in their order.
__device__ __forceinline__ Total add_warps(SharedSums shared, int n, int element) {
    Total total = {0, 0};
#pragma unroll
    for (int w = 0; w < BUSY_WARPS; ++w) {
        total.value += shared[w][n][element];
        if (EPILOGUE == SWIGLU) total.up += shared[w][n][element + 64];
    }
    return total;
}

// ---- epilogue ---------------------------------------------------------------------------------------------------------

#include "matmul_epilogue.cuh"

// ---- the kernel -------------------------------------------------------------------------------------------------------

// Reduce and epilogue of a pass, TILES_PER_ROUND output tiles at a time.
__device__ __forceinline__ void reduce_and_finish(const MatmulArguments& args, const Sums& sums, int group, const XRows& rows,
                                                  const Early& early, const Finisher& own) {
    const SharedSums shared = reinterpret_cast<SharedSums>(memory + (PASSES > 1 ? RING : 0));
#pragma unroll
    for (int from = 0; from < TILES; from += TILES_PER_ROUND) {
        if (from && from / WEIGHT_TILES >= rows.tiles) break;
        if (from) __syncthreads();
        store_sums(shared, sums, from, rows.me);
        __syncthreads();
        if (EPILOGUE == SWIGLU && own.part >= 2) continue;  // the other half of a tile belongs to the same columns
        for (int n = own.first_tile; n < TILES_PER_ROUND && (WHOLE_ROUNDS || from + n < TILES); n += WARPS / 4)
            finish(args, own.cell(group, from + n, rows.count), add_warps(shared, n, own.element), from + n == own.first_tile,
                   early, rows.me);
    }
}

extern "C" __global__ __launch_bounds__(THREADS, BLOCKS_PER_SM) void matmul_rows(const __grid_constant__ MatmulArguments all) {
    MatmulArguments of_rows;
    if (ROW_GROUPS > 1) of_rows = of_own_rows(all);
    const MatmulArguments& args = ROW_GROUPS > 1 ? of_rows : all;
    const Thread me;
    const int block = own_block();
    WeightRing ring(args.weight, me);
    ring.fill();
    const Finisher own(me);
    Early early = {0, load_of_column(FEEDS_NORM, args.norm_weight, block, own),
                   load_of_column(HAS_BIAS, args.bias, block, own)};
    // No kernel directly before a product changes how many rows there are.
    const int in_all = *args.active_count * args.rows_per_slot;
    const int count = ROW_GROUPS > 1 ? max(0, min(ROW_TILES * 8, in_all - first_row())) : in_all, tiles = (count + 7) / 8;
    if (!DELAY_DEPENDENTS) let_next_start();
    await_previous();
    if (count == 0) {
        await_copies<0>();
        return;
    }

    const XRows rows = {me, args.x + (long long)me.g * K_IN + 8 * me.c, count, tiles};
    XRegisters x;
    rows.load_first(x);
    // While weights are still on their way.
    if (PRE_NORM_X) compute_rms_factors(args.squares, count, args.eps, me);
    bool first = true;  // of a block's slices
#pragma unroll 1
    for (int group = block; group < GROUPS; group += GRID) {
        if (PASSES > 1 && group != block) {
            early.norm_weight = load_of_column(FEEDS_NORM, args.norm_weight, group, own);
            early.bias = load_of_column(HAS_BIAS, args.bias, group, own);
        }
        early.residual = load_residual(args.out, group, count, own);
        const unsigned least = load_to_beat(args.choices, count);

        Sums sums = {};
        multiply_pass(sums, ring, rows, x, first);

        if (PASSES == 1) await_copies<0>();
        // Of one pass, nobody may still need the ring; of more, the sums of the pass before.
        __syncthreads();
        if (TAKES_ARGMAX && threadIdx.x < ROW_TILES * 8) to_beat[threadIdx.x] = least;
        reduce_and_finish(args, sums, group, rows, early, own);
    }
}
