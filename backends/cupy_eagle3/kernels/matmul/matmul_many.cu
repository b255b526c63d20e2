// out[m][n] = Σ_k x[m][k] · weight[n][k] for more rows m than `matmul_rows.cu` has registers for: the same sums, bit for bit.
//
// There a block reads every row of x for a few rows of weight. With 32 rows of x it reads twice as many bytes of x as of
// weight, and the L2 cache, not the memory, is what it waits for. Here a block takes up to 128 rows of weight, and all its
// warps share the x that passes through shared memory: with 32 rows that is a quarter of the bytes of weight.
//
// Within a block, warps divide the rows of weight among them, WARP_TILES tiles of 16 each; beyond 32 rows of x, as many more
// warps take the other half of these. Where a block takes fewer than 128 rows (WEIGHT_TILES < 8), so that blocks fill all SMs
// alike, the warps that are left over copy and finish with the others, and multiply nothing. The parts of the work are those of
// `matmul_rows.cu`:
//   load       PieceRing: all threads copy a piece of k, of weight and of x, into shared memory, STAGES - 1 pieces ahead
//   multiply   multiply_piece: as there
//   reduce     sums of chains, see below, added in their order
//   epilogue   matmul_epilogue.cuh
//
// Chains: `matmul_rows.cu` has a warp for every CHAINS-th slice of k, and adds up the sums of these warps in order. Here a warp
// computes such sums one beside the other: HELD at a time, in registers of their own, since what one turn of these reads lies
// side by side in memory. CHAINS and CHUNKS_PER_TURN are fixed for a weight's shape, as there.
//
// CLUSTER: so many blocks, which run at once, share the chains of the same outputs: a weight of few rows would else keep half
// of the SMs idle. They exchange their sums through shared memory, and each finishes some of the rows.
//
// STAGES, CLUSTER, WEIGHT_TILES, WARP_TILES, ROW_TILES (the rows of a block / 8, rounded up), ROW_GROUPS and DELAY_DEPENDENTS
// only move work.
//
// Layouts, epilogues, PRE_NORM_X, ROW_GROUPS and DELAY_DEPENDENTS are as in `matmul_rows.cu`.
#include "argmax.cuh"
#include "async_copy.cuh"
#include "bf16.cuh"
#include "block.cuh"
#include "cluster.cuh"
#include "dependent.cuh"
#include "mma.cuh"

#define PLAIN 0
#define RESIDUAL 1
#define SWIGLU 2

static_assert(!TAKES_ARGMAX || EPILOGUE == PLAIN, "TAKES_ARGMAX needs results as they are: EPILOGUE PLAIN");
static_assert(!HAS_BIAS || EPILOGUE != SWIGLU, "HAS_BIAS needs one sum per result: EPILOGUE PLAIN or RESIDUAL");
static_assert(!FEEDS_NORM || N_OUT % 8 == 0, "N_OUT must be a multiple of 8 where a norm follows");
static_assert(K_IN % (32 * CHUNKS_PER_TURN) == 0, "K_IN must be a multiple of a slice");
static_assert(CHAINS % CLUSTER == 0, "every block of a cluster has as many chains");

// The warps of a block: COLUMN_WARPS × ROW_WARPS, each with WARP_TILES tiles of weight, while there are any, and WARP_ROWS
// tiles of rows.
const int COLUMN_WARPS = 8 / WARP_TILES, ROW_WARPS = ROW_TILES > 4 ? 2 : 1, WARP_ROWS = (ROW_TILES + ROW_WARPS - 1) / ROW_WARPS;
const int WARPS = COLUMN_WARPS * ROW_WARPS, THREADS = 32 * WARPS;
static_assert(WEIGHT_TILES <= COLUMN_WARPS * WARP_TILES, "every tile of weight needs a warp");
static_assert(WEIGHT_TILES % WARP_TILES == 0, "a warp has all its tiles of weight, or none");
// Sums that a thread has registers for at a time. Where they are added up at once, other assemblers than that of sm_90 run out.
#if CLUSTER == 1 && (__CUDA_ARCH__ != 900 || WARP_TILES == 1)
const int MOST_HELD = 2;
#else
const int MOST_HELD = 4;
#endif
// Along k: slices, and those of a chain; the chains of this block, and those whose sums are held at a time.
const int SLICES = K_IN / (32 * CHUNKS_PER_TURN), TURNS = (SLICES + CHAINS - 1) / CHAINS;
const int OWN_CHAINS = CHAINS / CLUSTER, HELD = OWN_CHAINS < MOST_HELD ? OWN_CHAINS : MOST_HELD;
static_assert(SLICES >= CHAINS, "every chain needs a slice");
static_assert(CLUSTER == 1 || OWN_CHAINS == HELD, "a block of a cluster holds the sums of all its chains");
// A piece: what a stage of the ring holds, at most 64 k of a slice.
const int PIECE_CHUNKS = CHUNKS_PER_TURN < 2 ? 1 : 2, PIECES_OF_SLICE = CHUNKS_PER_TURN / PIECE_CHUNKS;
const int PIECES = OWN_CHAINS * TURNS * PIECES_OF_SLICE;
// 16-byte loads: of a row in a piece, and of a stage.
const int LOADS = 4 * PIECE_CHUNKS, WEIGHT_LOADS = WEIGHT_TILES * 16 * LOADS, X_LOADS = ROW_TILES * 8 * LOADS;
const int STAGE = WEIGHT_LOADS + X_LOADS;
// Along the columns of out, as in matmul_rows.cu. COPIED_AT_ONCE: rows of weight that all threads copy together.
const int TILE_COLUMNS = EPILOGUE == SWIGLU ? 8 : 16, COLUMNS = WEIGHT_TILES * TILE_COLUMNS;
const int COPIED_AT_ONCE = THREADS / LOADS;
const bool RAGGED = N_OUT % COLUMNS != 0;
// Tiles of rows that this block finishes, output tiles of these, and how many of them a thread has a part in.
const int OWN_ROW_TILES = (ROW_TILES + CLUSTER - 1) / CLUSTER, TILES = OWN_ROW_TILES * WEIGHT_TILES;
const int EACH = (TILES + THREADS / 128 - 1) / (THREADS / 128);
// Blocks that shall fit an SM at once, which limits their registers.
const int BLOCKS_PER_SM = ROW_WARPS == 1 ? 2 : 1;
// Sums that a block leaves in shared memory: of all its chains, or their total.
const int STORED = CLUSTER == 1 ? 1 : HELD;

__device__ __forceinline__ int rank() { return CLUSTER > 1 ? blockIdx.x % CLUSTER : 0; }
__device__ __forceinline__ int first_row_of_group() {
    return ROW_GROUPS > 1 ? blockIdx.x / CLUSTER % ROW_GROUPS * ROW_TILES * 8 : 0;
}
// The first row that this block finishes.
__device__ __forceinline__ int first_row() { return first_row_of_group() + rank() * OWN_ROW_TILES * 8; }

#include "matmul_arguments.cuh"
#include "matmul_total.cuh"

// Both take what stands above.
#include "matmul_epilogue.cuh"
#include "rms_factors.cuh"

// The ring, and the sums in its place once the last piece has been multiplied.
extern __shared__ uint4 memory[];

// ---- load -------------------------------------------------------------------------------------------------------------

// Where load `unit` of a row is in a piece. Two neighbouring rows are read at once, and must not share banks.
__device__ __forceinline__ int place(int row, int unit) { return row * LOADS + (LOADS > 4 ? unit ^ (row & 1) * 4 : unit); }

// As `copy_async`, of what other blocks will read, too.
__device__ __forceinline__ void copy_async_kept(unsigned shared, const void* global) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}

// The place of a piece among all of this block: chains that are held together come one after the other, turn by turn.
struct Piece {
    int slice, part;

    __device__ __forceinline__ explicit Piece(int number) {
        const int of_slices = number / PIECES_OF_SLICE, held = of_slices % HELD, turn = of_slices / HELD % TURNS;
        const int chain = rank() * OWN_CHAINS + of_slices / (HELD * TURNS) * HELD + held;
        slice = turn * CHAINS + chain, part = number % PIECES_OF_SLICE;
    }
    __device__ __forceinline__ bool exists() const { return SLICES % CHAINS == 0 || slice < SLICES; }
    __device__ __forceinline__ int first_k() const { return 32 * (slice * CHUNKS_PER_TURN + part * PIECE_CHUNKS); }
};

struct PieceRing {
    const int row = threadIdx.x / LOADS, unit = threadIdx.x % LOADS, group;  // of what this thread copies first
    const unsigned address = shared_address(memory);
    const bf16 *weight, *x;
    int rows;  // of x that there are

    __device__ __forceinline__ PieceRing(const bf16* weight, int group)
        : group(group), weight(weight + 8 * unit), x(nullptr), rows(0) {}

    // Row `row` of the block's rows of weight. Beyond an odd N_OUT the last row is read again, and the result thrown away.
    __device__ __forceinline__ const bf16* weight_row(int row) const {
        const int within = row % 16, column = group * COLUMNS + row / 16 * TILE_COLUMNS + within % TILE_COLUMNS;
        const int of_up = EPILOGUE == SWIGLU && within >= 8 ? N_OUT : 0;
        return weight + (long long)(of_up + (RAGGED ? min(column, N_OUT - 1) : column)) * K_IN;
    }

    __device__ __forceinline__ void copy_weight(const Piece& piece, int stage) const {
        if (!piece.exists()) return;
        const bf16* first = weight_row(row) + piece.first_k();
#pragma unroll
        for (int n = 0; n < (WEIGHT_TILES * 16 + COPIED_AT_ONCE - 1) / COPIED_AT_ONCE; ++n) {
            if (WEIGHT_TILES * 16 % COPIED_AT_ONCE && row + n * COPIED_AT_ONCE >= WEIGHT_TILES * 16) break;
            const long long further = (long long)n * (COPIED_AT_ONCE / 16) * TILE_COLUMNS * K_IN;
            const bf16* from = RAGGED ? weight_row(row + n * COPIED_AT_ONCE) + piece.first_k() : first + further;
            copy_async(address + LOAD * (stage * STAGE + place(row + n * COPIED_AT_ONCE, unit)), from);
        }
    }

    __device__ __forceinline__ void copy_x(const Piece& piece, int stage) const {
        if (!piece.exists()) return;
#pragma unroll
        for (int n = 0; n < (ROW_TILES * 8 + COPIED_AT_ONCE - 1) / COPIED_AT_ONCE; ++n) {
            const int of = row + n * COPIED_AT_ONCE;
            if (of < rows)
                copy_async_kept(address + LOAD * (stage * STAGE + WEIGHT_LOADS + place(of, unit)),
                                x + (long long)of * K_IN + piece.first_k());
        }
    }

    // Piece `number`, if there is one, into its stage: a group of its own.
    __device__ __forceinline__ void request(int number) const {
        if (number < PIECES) {
            const Piece piece(number);
            copy_weight(piece, number % STAGES);
            copy_x(piece, number % STAGES);
            if (DELAY_DEPENDENTS && number == PIECES - 1) let_next_start();
        }
        end_of_group();
    }
};

// ---- multiply ---------------------------------------------------------------------------------------------------------

// A warp's sums of a chain, operand C of every output tile.
typedef float Sums[WARP_TILES][WARP_ROWS][4];

// Whether a warp multiplies, from its first tile of weight on.
__device__ __forceinline__ bool multiplies(int first_tile) {
    return WEIGHT_TILES == COLUMN_WARPS * WARP_TILES || first_tile < WEIGHT_TILES;
}

// sums += x · weightᵀ over the k of a piece; of `tiles` tiles of rows there are any.
__device__ __forceinline__ void multiply_piece(Sums& sums, int stage, int tiles, const Thread& me) {
    const uint4 *weight = memory + stage * STAGE, *x = weight + WEIGHT_LOADS;
    const int first_tile = me.warp % COLUMN_WARPS * WARP_TILES, first_rows = me.warp / COLUMN_WARPS * WARP_ROWS;
    if (!multiplies(first_tile)) return;
#pragma unroll
    for (int s = 0; s < PIECE_CHUNKS; ++s) {
        uint4 low[WARP_TILES], high[WARP_TILES];
#pragma unroll
        for (int j = 0; j < WARP_TILES; ++j) {
            low[j] = weight[place((first_tile + j) * 16 + me.g, 4 * s + me.c)];
            high[j] = weight[place((first_tile + j) * 16 + me.g + 8, 4 * s + me.c)];
        }
#pragma unroll
        for (int t = 0; t < WARP_ROWS; ++t)
            if (first_rows + t < tiles) {
                const uint4 b = x[place((first_rows + t) * 8 + me.g, 4 * s + me.c)];
#pragma unroll
                for (int j = 0; j < WARP_TILES; ++j) mma_k32(sums[j][t], low[j], high[j], b);
            }
    }
}

// ---- reduce -----------------------------------------------------------------------------------------------------------

// [STORED][ROW_TILES · WEIGHT_TILES][128]: output tile t · WEIGHT_TILES + j is row tile t times weight tile j.
typedef float (*SharedSums)[ROW_TILES * WEIGHT_TILES][128];

__device__ __forceinline__ void store_sums(SharedSums shared, int n, const Sums& sums, const Thread& me) {
    const int first_tile = me.warp % COLUMN_WARPS * WARP_TILES, first_rows = me.warp / COLUMN_WARPS * WARP_ROWS;
    if (!multiplies(first_tile)) return;
#pragma unroll
    for (int t = 0; t < WARP_ROWS; ++t)
        if (first_rows + t < ROW_TILES)
#pragma unroll
            for (int j = 0; j < WARP_TILES; ++j)
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    shared[n][(first_rows + t) * WEIGHT_TILES + first_tile + j][32 * i + me.lane] = sums[j][t][i];
}

__device__ __forceinline__ void add_in_order(Sums& total, const Sums& next) {
#pragma unroll
    for (int j = 0; j < WARP_TILES; ++j)
#pragma unroll
        for (int t = 0; t < WARP_ROWS; ++t)
#pragma unroll
            for (int i = 0; i < 4; ++i) total[j][t][i] += next[j][t][i];
}

// An element's total over the chains of all blocks of the cluster, in their order.
__device__ __forceinline__ Total add_chains(const SharedSums shared, int tile, int element) {
    Total total = {0, 0};
#pragma unroll
    for (int r = 0; r < CLUSTER; ++r) {
        const SharedSums of_block = of_rank(shared, r);
#pragma unroll
        for (int n = 0; n < STORED; ++n) {
            total.value += of_block[n][tile][element];
            if (EPILOGUE == SWIGLU) total.up += of_block[n][tile][element + 64];
        }
    }
    return total;
}

// ---- the kernel -------------------------------------------------------------------------------------------------------

__device__ __forceinline__ Early load_early(const MatmulArguments& args, const Cell& cell) {
    Early early = {0, 0, 0};
    if (!cell.exists) return early;
    if (EPILOGUE == RESIDUAL) early.residual = static_cast<const float*>(args.out)[cell.index];
    if (FEEDS_NORM) early.norm_weight = to_float(args.norm_weight[cell.column]);
    if (HAS_BIAS) early.bias = to_float(args.bias[cell.column]);
    return early;
}

extern "C" __global__ CLUSTER_OF(CLUSTER)
    __launch_bounds__(THREADS, BLOCKS_PER_SM) void matmul_many(const __grid_constant__ MatmulArguments all) {
    const MatmulArguments args = of_own_rows(all);
    const Thread me;
    const int group = blockIdx.x / (CLUSTER * ROW_GROUPS);
    PieceRing ring(all.weight, group);
#pragma unroll
    for (int n = 0; n < STAGES - 1; ++n)
        if (n < PIECES) ring.copy_weight(Piece(n), n);
    const Finisher own(me);
    // No kernel directly before a product changes how many rows there are.
    const int in_all = *all.active_count * all.rows_per_slot,
              in_group = max(0, min(ROW_TILES * 8, in_all - first_row_of_group()));
    const int count = max(0, min(OWN_ROW_TILES * 8, in_group - rank() * OWN_ROW_TILES * 8)), tiles = (in_group + 7) / 8;
    if (!DELAY_DEPENDENTS) let_next_start();
    await_previous();
    if (in_group == 0) {  // so it is for the whole cluster
        await_copies<0>();
        return;
    }

    ring.x = all.x + (long long)first_row_of_group() * K_IN + 8 * ring.unit, ring.rows = in_group;
#pragma unroll
    for (int n = 0; n < STAGES - 1; ++n) {
        if (n < PIECES) ring.copy_x(Piece(n), n);
        end_of_group();
    }
    // While weights are still on their way.
    if (PRE_NORM_X) compute_rms_factors(args.squares, count, args.eps, me);
    const unsigned least = load_to_beat(args.choices, count);

    Sums total = {};
    Sums held[HELD];
    int number = 0;
#pragma unroll 1
    for (int chains = 0; chains < OWN_CHAINS; chains += HELD) {
#pragma unroll
        for (int h = 0; h < HELD; ++h)
#pragma unroll
            for (int j = 0; j < WARP_TILES; ++j)
#pragma unroll
                for (int t = 0; t < WARP_ROWS; ++t)
#pragma unroll
                    for (int i = 0; i < 4; ++i) held[h][j][t][i] = 0;
#pragma unroll 1
        for (int turn = 0; turn < TURNS; ++turn)
#pragma unroll
            for (int h = 0; h < HELD; ++h)
#pragma unroll
                for (int part = 0; part < PIECES_OF_SLICE; ++part, ++number) {
                    await_copies<STAGES - 2>();
                    __syncthreads();  // all have their copies of this piece, and have multiplied the one before
                    ring.request(number + STAGES - 1);
                    if (Piece(number).exists()) multiply_piece(held[h], number % STAGES, tiles, me);
                }
        if (CLUSTER == 1)
#pragma unroll
            for (int h = 0; h < HELD; ++h) add_in_order(total, held[h]);
    }

    Early early[EACH];
#pragma unroll
    for (int e = 0; e < EACH; ++e) early[e] = load_early(args, own.cell(group, own.first_tile + e * (THREADS / 128), count));
    await_copies<0>();
    __syncthreads();  // nobody still needs the ring
    const SharedSums shared = reinterpret_cast<SharedSums>(memory);
#pragma unroll
    for (int n = 0; n < STORED; ++n) store_sums(shared, n, CLUSTER == 1 ? total : held[n], me);
    if (TAKES_ARGMAX && threadIdx.x < ROW_TILES * 8) to_beat[threadIdx.x] = least;
    sync_cluster<CLUSTER>();
    Total totals[EACH];
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
        const int tile = rank() * TILES + own.first_tile + e * (THREADS / 128);
        totals[e] = {0, 0};
        if (tile < tiles * WEIGHT_TILES && (EPILOGUE != SWIGLU || own.part < 2))
            totals[e] = add_chains(shared, tile, own.element);
    }
    if (CLUSTER > 1) sync_cluster<CLUSTER>();  // nobody ends while others read its sums
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
        const int tile = own.first_tile + e * (THREADS / 128);
        if (tile / WEIGHT_TILES * 8 >= count) break;
        if (EPILOGUE == SWIGLU && own.part >= 2) break;  // the other half of a tile belongs to the same columns
        finish(args, own.cell(group, tile, count), totals[e], true, early[e], me);
    }
}
