// out[m][n] = Σ_k x[m][k] · weight[n][k] for more rows m than `matmul_rows.cu` has registers for: the same sums, bit for bit.
//
// There a block reads every row of x for a few rows of weight. With 32 rows of x it reads twice as many bytes of x as of
// weight, and the L2 cache, not the memory, is what it waits for. Here a block takes up to 128 rows of weight, and all its
// warps share the x that passes through shared memory: with 32 rows that is a quarter of the bytes of weight.
//
// Within a block, warps divide the rows of weight among them, WARP_TILES tiles of 16 each; beyond 32 rows of x, as many more
// warps take the other half of these. Warps come in fours; those that are left over (WEIGHT_TILES is chosen so that blocks
// fill all SMs alike) copy and finish with the others, and multiply nothing. The parts of the work are those of
// `matmul_rows.cu`:
//   load       PieceRing: all threads copy a piece of k, of weight and of x, into shared memory, STAGES - 1 pieces ahead
//   multiply   multiply_piece: as there. An SM has few warps, each of which multiplies between two barriers, so what a warp
//              does there has to overlap: it loads all that it multiplies from shared memory first, asks for the piece that
//              comes STAGES - 1 later, and takes every sum once before it takes one again. Rows of x that do not exist
//              are multiplied like others, whatever lies in their place: nobody reads their sums
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
#include "prefetch.cuh"

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
const int COLUMN_WARPS = (WEIGHT_TILES / WARP_TILES + 3) / 4 * 4;
const int ROW_WARPS = ROW_TILES > 4 ? 2 : 1, WARP_ROWS = (ROW_TILES + ROW_WARPS - 1) / ROW_WARPS;
const int WARPS = COLUMN_WARPS * ROW_WARPS, THREADS = 32 * WARPS;
static_assert(WEIGHT_TILES % WARP_TILES == 0, "a warp has all its tiles of weight, or none");
// Sums that a thread has registers for at a time: fewer where it also keeps their total.
const int MOST_HELD = CLUSTER == 1 ? 2 : 4;
// Along k: slices, and those of a chain; the chains of this block, and those whose sums are held at a time.
const int SLICES = K_IN / (32 * CHUNKS_PER_TURN), TURNS = (SLICES + CHAINS - 1) / CHAINS;
const int OWN_CHAINS = CHAINS / CLUSTER, HELD = OWN_CHAINS < MOST_HELD ? OWN_CHAINS : MOST_HELD;
static_assert(SLICES >= CHAINS, "every chain needs a slice");
static_assert(CLUSTER == 1 || OWN_CHAINS == HELD, "a block of a cluster holds the sums of all its chains");
// A piece: what a stage of the ring holds, at most 64 k of a slice. What a turn reads of a row lies side by side.
const int PIECE_CHUNKS = CHUNKS_PER_TURN < 2 ? 1 : 2, TURN_CHUNKS = HELD * CHUNKS_PER_TURN;
const unsigned PIECES_OF_TURN = TURN_CHUNKS / PIECE_CHUNKS, PIECES = OWN_CHAINS / HELD * TURNS * PIECES_OF_TURN;
// 16-byte loads: of a row in a piece, and of a stage.
const int LOADS = 4 * PIECE_CHUNKS, WEIGHT_LOADS = WEIGHT_TILES * 16 * LOADS, X_LOADS = ROW_TILES * 8 * LOADS;
const int STAGE = WEIGHT_LOADS + X_LOADS;
// Along the columns of out, as in matmul_rows.cu.
const int TILE_COLUMNS = EPILOGUE == SWIGLU ? 8 : 16, COLUMNS = WEIGHT_TILES * TILE_COLUMNS;
const bool RAGGED = N_OUT % COLUMNS != 0;
const int ROWS_AT_ONCE = THREADS / LOADS;  // that all threads copy together
static_assert(ROWS_AT_ONCE % 16 == 0, "a thread copies the same row of every tile");
// Tiles of rows that this block finishes, output tiles of these, and how many of them a thread has a part in.
const int OWN_ROW_TILES = (ROW_TILES + CLUSTER - 1) / CLUSTER, TILES = OWN_ROW_TILES * WEIGHT_TILES;
const int EACH = (TILES + THREADS / 128 - 1) / (THREADS / 128);
// So many at a time: those of a cluster together.
const int AT_ONCE = CLUSTER > 1 || EACH < 8 ? EACH : 8;
// Blocks that shall fit an SM at once, which limits their registers.
const int BLOCKS_PER_SM = ROW_WARPS == 1 && WEIGHT_TILES <= 8 ? 2 : 1;
// Sums that a block leaves in shared memory: of all its chains. That of rank 0, whose chains come first, leaves their total.
const int STORED = CLUSTER == 1 ? 1 : HELD;

#include "own_rows.cuh"

// The ring, and the sums in its place once the last piece has been multiplied.
extern __shared__ uint4 memory[];

// ---- load -------------------------------------------------------------------------------------------------------------

// Where load `unit` of a row is in a piece. Two neighbouring rows are read at once, and must not share banks.
__device__ __forceinline__ int place(int row, int unit) { return row * LOADS + (LOADS > 4 ? unit ^ (row & 1) * 4 : unit); }

// As `copy_async`, of what other blocks will read, too.
__device__ __forceinline__ void copy_async_kept(unsigned shared, const void* global) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}

// The place of a piece among all of this block: those of a turn come one after the other, and chains that are held together
// turn by turn.
struct Piece {
    unsigned turn, group, chunk;  // of the chains that are held; the first chunk of the turn's

    __device__ __forceinline__ explicit Piece(unsigned number)
        : turn(number / PIECES_OF_TURN % TURNS),
          group(number / (PIECES_OF_TURN * TURNS)),
          chunk(number % PIECES_OF_TURN * PIECE_CHUNKS) {}

    __device__ __forceinline__ unsigned first_chain() const { return rank() * OWN_CHAINS + group * HELD; }
    __device__ __forceinline__ bool exists() const {
        return SLICES % CHAINS == 0 || turn * CHAINS + first_chain() + chunk / CHUNKS_PER_TURN < SLICES;
    }
    __device__ __forceinline__ unsigned first_k() const {
        return 32 * ((turn * CHAINS + first_chain()) * CHUNKS_PER_TURN + chunk);
    }
};

struct PieceRing {
    const int row = threadIdx.x / LOADS, unit = threadIdx.x % LOADS;  // of what this thread copies first
    const unsigned address = shared_address(memory) + LOAD * place(row, unit);
    const bf16 *weight, *x;
    int existing, rows;  // rows of weight from `row` on, and of x, that there are

    __device__ __forceinline__ PieceRing(const bf16* all, int group) : x(nullptr), rows(0) {
        const int within = row % 16, column = group * COLUMNS + row / 16 * TILE_COLUMNS + within % TILE_COLUMNS;
        const int of_up = EPILOGUE == SWIGLU && within >= 8 ? N_OUT : 0;
        weight = all + (long long)(of_up + column) * K_IN + 8 * unit;
        existing = RAGGED ? (N_OUT - column + TILE_COLUMNS - 1) / TILE_COLUMNS * 16 : WEIGHT_TILES * 16;
        if (WEIGHT_TILES * 16 % ROWS_AT_ONCE) existing = min(existing, WEIGHT_TILES * 16 - row);
    }

    __device__ __forceinline__ void take_x(const bf16* all, int count) {
        x = all + (long long)row * K_IN + 8 * unit;
        rows = count - row;
    }

    // Beyond an odd N_OUT nothing is copied, and what comes of it thrown away.
    __device__ __forceinline__ void copy_weight(const Piece& piece, int stage) const {
        if (!piece.exists()) return;
        const bf16* from = weight + piece.first_k();
#pragma unroll
        for (int n = 0; n < (WEIGHT_TILES * 16 + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE; ++n) {
            const bool all = !RAGGED && (n + 1) * ROWS_AT_ONCE <= WEIGHT_TILES * 16;
            const long long further = (long long)n * (ROWS_AT_ONCE / 16) * TILE_COLUMNS * K_IN;
            if (all || n * ROWS_AT_ONCE < existing)
                copy_async(address + LOAD * (stage + n * ROWS_AT_ONCE * LOADS), from + further);
        }
    }

    __device__ __forceinline__ void copy_x(const Piece& piece, int stage) const {
        if (!piece.exists()) return;
        const bf16* from = x + piece.first_k();
#pragma unroll
        for (int n = 0; n < (ROW_TILES * 8 + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE; ++n)
            if (n * ROWS_AT_ONCE < rows)
                copy_async_kept(address + LOAD * (stage + WEIGHT_LOADS + n * ROWS_AT_ONCE * LOADS),
                                from + n * ROWS_AT_ONCE * K_IN);
    }

    // Piece `number`, if there is one, into a stage: a group of its own.
    __device__ __forceinline__ void request(unsigned number, int stage) const {
        if (number < PIECES) {
            const Piece piece(number);
            copy_weight(piece, stage);
            copy_x(piece, stage);
            if (DELAY_DEPENDENTS && number == PIECES - 1) let_next_start();
        }
        end_of_group();
    }
};

// ---- load: the division of the norm before the product ------------------------------------------------------------------

// As in rms_factors.cuh, addition for addition. But no product can begin before the factors are there, so a warp requests all
// its rows at once, or as many as it has registers for.
__device__ __forceinline__ void compute_rms_factors(const float* squares, int rows, float eps, const Thread& me) {
    const int SQUARES = K_IN / 8, EACH_FOURS = (SQUARES / 4 + 31) / 32, FOURS = WARP_TILES == 1 ? 16 : 32;
    const int OF_WARP = (OWN_ROW_TILES * 8 + WARPS - 1) / WARPS;
    const int ROWS = EACH_FOURS >= FOURS ? 1 : FOURS / EACH_FOURS < OF_WARP ? FOURS / EACH_FOURS : OF_WARP;
#pragma unroll 1
    for (int row = me.warp; row < rows; row += WARPS * ROWS) {
        float4 four[ROWS][EACH_FOURS];
#pragma unroll
        for (int n = 0; n < ROWS; ++n) {
            const float4* of = reinterpret_cast<const float4*>(squares + (row + n * WARPS) * SQUARES);
#pragma unroll
            for (int e = 0; e < EACH_FOURS; ++e) {
                const bool exists = row + n * WARPS < rows && me.lane + 32 * e < SQUARES / 4;
                four[n][e] = exists ? of[me.lane + 32 * e] : float4{};
            }
        }
        float sum[ROWS];
#pragma unroll
        for (int n = 0; n < ROWS; ++n) {
            sum[n] = 0;
#pragma unroll
            for (int e = 0; e < EACH_FOURS; ++e) sum[n] += (four[n][e].x + four[n][e].y) + (four[n][e].z + four[n][e].w);
        }
#pragma unroll
        for (int step = 16; step; step /= 2)  // as warp_sum, of all rows at once
#pragma unroll
            for (int n = 0; n < ROWS; ++n) sum[n] += __shfl_xor_sync(FULL_WARP, sum[n], step);
#pragma unroll
        for (int n = 0; n < ROWS; ++n)
            if (me.lane == 0 && row + n * WARPS < rows) rms_factor[row + n * WARPS] = rsqrtf(sum[n] / K_IN + eps);
    }
}

// ---- multiply ---------------------------------------------------------------------------------------------------------

// A warp's sums of a chain, operand C of every output tile.
typedef float Sums[WARP_TILES][WARP_ROWS][4];

// The same number, and the compiler cannot know that: it keeps the number instead of computing it anew for every piece.
__device__ __forceinline__ int kept(int number, const Thread& me) { return __shfl_sync(FULL_WARP, number, me.lane); }

// What of a piece a warp multiplies.
struct Share {
    const int first_tile, first_rows;
    // Loads of its first row of weight and of x in a stage, at this lane's k of the first chunk. Those of a second chunk are
    // beside these: see `place`.
    const int weight, x;
    const int same;  // for __byte_perm: all bytes where they are

    __device__ __forceinline__ explicit Share(const Thread& me)
        : first_tile(me.warp % COLUMN_WARPS * WARP_TILES),
          first_rows(me.warp / COLUMN_WARPS * WARP_ROWS),
          weight(kept(place(first_tile * 16 + me.g, me.c), me)),
          x(kept(WEIGHT_LOADS + place(first_rows * 8 + me.g, me.c), me)),
          same(kept(0x3210, me)) {}

    // Whether there is any.
    __device__ __forceinline__ bool exists() const {
        return WEIGHT_TILES == COLUMN_WARPS * WARP_TILES || first_tile < WEIGHT_TILES;
    }
    __device__ __forceinline__ bool has_rows(int t) const {
        return WARP_ROWS * ROW_WARPS == ROW_TILES || first_rows + t < ROW_TILES;
    }
};

// Operands of a chunk: rows g and g + 8 of tiles of weight, and tiles of rows.
struct Operands {
    uint4 low[WARP_TILES], high[WARP_TILES], x[WARP_ROWS];

    // Of chunk s of a piece.
    __device__ __forceinline__ void load(int stage, int s, const Share& share) {
        const uint4 *of_weight = memory + ((stage + share.weight) ^ 4 * s), *of_x = memory + ((stage + share.x) ^ 4 * s);
#pragma unroll
        for (int j = 0; j < WARP_TILES; ++j) {
            low[j] = of_weight[j * 16 * LOADS];
            high[j] = of_weight[(j * 16 + 8) * LOADS];
        }
#pragma unroll
        for (int t = 0; t < WARP_ROWS; ++t) x[t] = of_x[(share.has_rows(t) ? t : 0) * 8 * LOADS];
    }
};

// Operand A of one product: its four registers must lie side by side. The assembler would copy them there for every product
// anew, four copies of one use each; it does not know that these are copies.
struct OperandA {
    const unsigned a0, a1, a2, a3;

    __device__ __forceinline__ OperandA(unsigned low, unsigned high, unsigned low_8, unsigned high_8, int same)
        : a0(__byte_perm(low, 0, same)),
          a1(__byte_perm(high, 0, same)),
          a2(__byte_perm(low_8, 0, same)),
          a3(__byte_perm(high_8, 0, same)) {}
};

// sums += x · weightᵀ over a chunk: every sum takes its first product, then every sum its second, as `mma_k32` one by one.
__device__ __forceinline__ void multiply_chunk(Sums& sums, const Operands& of, const Share& share) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int j = 0; j < WARP_TILES; ++j) {
            const uint4 &low = of.low[j], &high = of.high[j];
            const OperandA a(half ? low.z : low.x, half ? high.z : high.x, half ? low.w : low.y, half ? high.w : high.y,
                             share.same);
#pragma unroll
            for (int t = 0; t < WARP_ROWS; ++t)
                mma_bf16(sums[j][t], a.a0, a.a1, a.a2, a.a3, half ? of.x[t].z : of.x[t].x, half ? of.x[t].w : of.x[t].y);
        }
}

// ---- reduce -----------------------------------------------------------------------------------------------------------

// [STORED][ROW_TILES · WEIGHT_TILES][128]: output tile t · WEIGHT_TILES + j is row tile t times weight tile j.
typedef float (*SharedSums)[ROW_TILES * WEIGHT_TILES][128];

__device__ __forceinline__ void store_sums(SharedSums shared, int n, const Sums& sums, const Share& share, const Thread& me) {
    if (!share.exists()) return;
#pragma unroll
    for (int t = 0; t < WARP_ROWS; ++t)
        if (share.has_rows(t))
#pragma unroll
            for (int j = 0; j < WARP_TILES; ++j)
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    shared[n][(share.first_rows + t) * WEIGHT_TILES + share.first_tile + j][32 * i + me.lane] = sums[j][t][i];
}

__device__ __forceinline__ void add_in_order(Sums& total, const Sums& next) {
#pragma unroll
    for (int j = 0; j < WARP_TILES; ++j)
#pragma unroll
        for (int t = 0; t < WARP_ROWS; ++t)
#pragma unroll
            for (int i = 0; i < 4; ++i) total[j][t][i] += next[j][t][i];
}

#include "cluster_totals.cuh"

// ---- the kernel -------------------------------------------------------------------------------------------------------

extern "C" __global__ CLUSTER_OF(CLUSTER)
    __launch_bounds__(THREADS, BLOCKS_PER_SM) void matmul_many(const __grid_constant__ MatmulArguments all) {
    const MatmulArguments args = of_own_rows(all);
    const Thread me;
    const int group = blockIdx.x / (CLUSTER * ROW_GROUPS);
    PieceRing ring(all.weight, group);
#pragma unroll
    for (int n = 0; n < STAGES - 1; ++n)
        if (n < PIECES) ring.copy_weight(Piece(n), n * STAGE);
    const Finisher own(me);
    prefetch_columns(FEEDS_NORM, all.norm_weight, group);
    prefetch_columns(HAS_BIAS, all.bias, group);
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

    ring.take_x(all.x + (long long)first_row_of_group() * K_IN, in_group);
#pragma unroll
    for (int n = 0; n < STAGES - 1; ++n) {
        if (n < PIECES) ring.copy_x(Piece(n), n * STAGE);
        end_of_group();
    }
    // While weights are still on their way.
    if (PRE_NORM_X) compute_rms_factors(args.squares, count, args.eps, me);
    const unsigned least = load_to_beat(args.choices, count);
    if (TAKES_ARGMAX && threadIdx.x < ROW_TILES * 8) to_beat[threadIdx.x] = least;

    const Share share(me);
    const bool multiplies = share.exists() && share.first_rows < tiles;
    Sums total = {};
    Sums held[HELD];
    unsigned number = 0;
    int stage = 0, before = (STAGES - 1) * STAGE;  // where this piece is, and the one before it
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
            for (int chunk = 0; chunk < TURN_CHUNKS; chunk += PIECE_CHUNKS, ++number) {
                await_copies<STAGES - 2>();
                __syncthreads();  // all have their copies of this piece, and have multiplied the one before
                const bool exists = multiplies && Piece(number).exists();
                Operands of[PIECE_CHUNKS];
                if (exists) of[0].load(stage, 0, share);
                ring.request(number + STAGES - 1, before);
                if (exists)
#pragma unroll
                    for (int s = 0; s < PIECE_CHUNKS; ++s) {
                        if (s + 1 < PIECE_CHUNKS) of[s + 1].load(stage, s + 1, share);
                        multiply_chunk(held[(chunk + s) / CHUNKS_PER_TURN], of[s], share);
                    }
                before = stage, stage = stage == (STAGES - 1) * STAGE ? 0 : stage + STAGE;
            }
        if (CLUSTER == 1)
#pragma unroll
            for (int h = 0; h < HELD; ++h) add_in_order(total, held[h]);
    }

    Early early[AT_ONCE];
    const auto load_all_early = [&](int from) {
#pragma unroll
        for (int e = 0; e < AT_ONCE; ++e)
            early[e] = load_early(args, own.cell(group, own.first_tile + (from + e) * (THREADS / 128), count));
    };
    load_all_early(0);
    await_copies<0>();
    __syncthreads();  // nobody still needs the ring
    const SharedSums shared = reinterpret_cast<SharedSums>(memory);
#pragma unroll
    for (int n = 0; n < STORED; ++n) {
        if (CLUSTER > 1 && rank() == 0) add_in_order(total, held[n]);
        if (CLUSTER > 1 && rank() > 0) store_sums(shared, n, held[n], share, me);
    }
    if (CLUSTER == 1 || rank() == 0) store_sums(shared, 0, total, share, me);
    sync_cluster<CLUSTER>();
#pragma unroll
    for (int from = 0; from < EACH; from += AT_ONCE) {
        if (from) load_all_early(from);
        Total totals[AT_ONCE];
#pragma unroll
        for (int e = 0; e < AT_ONCE; ++e) {
            const int tile = rank() * TILES + own.first_tile + (from + e) * (THREADS / 128);
            totals[e] = {0, 0};
            if (tile < tiles * WEIGHT_TILES && (EPILOGUE != SWIGLU || own.part < 2))
                totals[e] = add_chains(shared, tile, own.element);
        }
        arrive_in_cluster();
#pragma unroll
        for (int e = 0; e < AT_ONCE; ++e) {
            const int tile = own.first_tile + (from + e) * (THREADS / 128);
            if (tile / WEIGHT_TILES * 8 >= count) break;
            if (EPILOGUE == SWIGLU && own.part >= 2) break;  // the other half of a tile belongs to the same columns
            finish(args, own.cell(group, tile, count), totals[e], true, early[e], me);
        }
    }
    await_cluster();  // nobody ends while others read its sums
}
