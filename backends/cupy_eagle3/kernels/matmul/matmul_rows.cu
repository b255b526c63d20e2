// out[m][n] = Σ_k x[m][k] · weight[n][k] for the few rows m of a decode step, on tensor cores; float32 sums.
//
// One block multiplies all rows with WEIGHT_TILES tiles of 16 rows of weight. Weight tiles are A, eight rows of x are the
// columns of B; WARPS warps split k, warp w taking the SPAN 32-wide chunks w · SPAN … of every WARPS · SPAN; their sums are
// added in the order of the warps. Neither split nor order depends on the number of rows: a row's result alone is its result
// among others, bit for bit. So WARPS and SPAN belong to (N_OUT, K_IN); WEIGHT_TILES, PASSES, STAGES, KEPT, HELD and ROW_TILES
// (rows / 8, rounded up) are free.
//
// Weights stream through a ring of STAGES stages in shared memory, of which every thread reads only what it has copied. The
// first stages are under way before the kernel before this one has ended. A block makes PASSES passes over k, each with
// other rows of weight; the ring runs on from one to the next. With KEPT every thread holds its share of x in registers from
// the first pass to the last: no unit waits for x again. The kernel after this one may start at once or, HELD, when the last
// weights have been asked for.
//
// Rows of x may still lack their RMSNorm's division: with SCALED the sums are multiplied by 1 / sqrt(mean(x²) + eps),
// `squares` [rows][K_IN / 8] being sums of squares over eight elements each, since a factor of a row does not change which
// products are added. Epilogues: PLAIN float32; RESIDUAL float32 +=; SWIGLU bfloat16 silu(gate) · up, gate and up being the
// halves of weight, of which a tile holds eight rows each. A RESIDUAL with FEEDS_NORM leaves the next norm's input so:
// `normed` = out · norm_weight, and its squares. A PLAIN with CHOOSES also raises `choices`[row], zero before, to the greedy
// choice among the row's results.
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
static_assert(!CHOOSES || EPILOGUE == PLAIN, "CHOOSES needs results as they are: EPILOGUE PLAIN");
static_assert(!FEEDS_NORM || N_OUT % 8 == 0, "N_OUT must be a multiple of 8 where a norm follows");

const int FEATURES = EPILOGUE == SWIGLU ? 8 : 16;  // of a tile
const int CHUNKS = K_IN / 32;
const int UNITS = (CHUNKS + SPAN - 1) / SPAN;
const int TILES = ROW_TILES * WEIGHT_TILES;
const int GROUPS = (N_OUT + WEIGHT_TILES * FEATURES - 1) / (WEIGHT_TILES * FEATURES);  // of WEIGHT_TILES tiles
const int GRID = (GROUPS + PASSES - 1) / PASSES;  // block b takes the groups b, b + GRID, …
const int SQUARES = K_IN / 8, EACH = (SQUARES / 4 + 31) / 32;  // of a row, and how many fours of them a lane adds up
const int TURNS = (UNITS + WARPS - 1) / WARPS;  // units of a warp, in a pass
const int WORKING = UNITS < WARPS ? UNITS : WARPS;  // warps that have any
const bool EARLY = SPAN * ROW_TILES <= 8;  // x is asked for before its weights are there; of more no registers are left
const int AT_ONCE = ROW_TILES * 8 > WARPS ? 2 : 1;  // rows whose squares a warp asks for together
const int ROUND = TILES < 4 ? TILES : 4;  // tiles that the sums of the warps are taken of at a time

// To find room on an SM at once, of few rows and tiles: so many registers are enough for these. What keeps x has 128.
const int BLOCKS = KEPT ? 16 / WARPS : ROW_TILES > 1 || WEIGHT_TILES > 2 ? 1 : WARPS == 16 ? 2 : WARPS == 8 ? 3 : 4;

// The ring [STAGES][WARPS][SPAN][WEIGHT_TILES][2][32], and the sums of the warps: after it, or, with one pass, in its place.
const int RING = STAGES * WARPS * SPAN * WEIGHT_TILES * 64;
extern __shared__ uint4 memory[];

extern "C" __global__ __launch_bounds__(WARPS * 32, BLOCKS) void matmul_rows(void* out, const bf16* x, const bf16* weight,
                                                                             const float* squares, bf16* normed,
                                                                             float* normed_squares, const bf16* norm_weight,
                                                                             Choice* choices, const int* active_count,
                                                                             int rows_per_slot, float eps) {
    __shared__ float factor[ROW_TILES * 8];  // that a row lacks of its norm
    __shared__ unsigned to_beat[ROW_TILES * 8];  // by a choice that needs an atomic operation
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;

    const bf16 *low[WEIGHT_TILES], *high[WEIGHT_TILES];
    auto aim = [&](int group) {
#pragma unroll
        for (int j = 0; j < WEIGHT_TILES; ++j) {
            // Beyond an odd N_OUT the last row is read again, and the result thrown away.
            const int from = (group * WEIGHT_TILES + j) * FEATURES + g, first = min(from, N_OUT - 1);
            const int second = EPILOGUE == SWIGLU ? N_OUT + first : min(from + 8, N_OUT - 1);
            low[j] = weight + (long long)first * K_IN + 8 * c;
            high[j] = weight + (long long)second * K_IN + 8 * c;
        }
    };
    const unsigned ring = shared_address(memory);
    auto slot = [&](int stage, int s, int j) {
        return (((stage * WARPS + warp) * SPAN + s) * WEIGHT_TILES + j) * 64 + lane;
    };
    int coming = blockIdx.x, next = warp;  // group and unit that are copied next
    auto fetch = [&](int stage) {
        if (next >= UNITS) return;
#pragma unroll
        for (int s = 0; s < SPAN; ++s) {
            const int chunk = next * SPAN + s;
            if (CHUNKS % SPAN && chunk >= CHUNKS) continue;
#pragma unroll
            for (int j = 0; j < WEIGHT_TILES; ++j) {
                copy_async(ring + LOAD * slot(stage, s, j), low[j] + chunk * 32);
                copy_async(ring + LOAD * (slot(stage, s, j) + 32), high[j] + chunk * 32);
            }
        }
        next += WARPS;
        if (PASSES > 1 && next >= UNITS && coming + GRID < GROUPS) {
            next = warp;
            aim(coming += GRID);
        }
        if (HELD && next >= UNITS) let_next_start();
    };
    aim(coming);
#pragma unroll
    for (int stage = 0; stage < STAGES; ++stage) {
        fetch(stage);
        end_of_group();
    }
    const int element = threadIdx.x % 128, half = element / 32, own = threadIdx.x / 128;
    const int finished = 2 * c + half % 2, made = g + 8 * (half / 2);  // row and feature in a tile
    auto column_of = [&](int group, int tile) {
        return (group * WEIGHT_TILES + tile % WEIGHT_TILES) * FEATURES + made;
    };
    // Of the tile that a thread finishes first. Weights of norms come from memory, once per step: a trip to be made early.
    auto gain_of = [&](int group) {
        const bool wanted = FEEDS_NORM && own < TILES && column_of(group, own) < N_OUT;
        return wanted ? to_float(norm_weight[column_of(group, own)]) : 0;
    };
    float gain = gain_of(blockIdx.x);
    // No kernel directly before a product changes how many rows there are.
    const int rows = *active_count * rows_per_slot, tiles = (rows + 7) / 8;
    if (!HELD) let_next_start();
    await_previous();
    if (rows == 0) {
        await_copies<0>();
        return;
    }

    const bf16* mine = x + (long long)g * K_IN + 8 * c;
    uint4 b[KEPT ? TURNS : 1][SPAN][ROW_TILES];
    auto load_rows = [&](uint4(&into)[SPAN][ROW_TILES], int unit, int s) {
        const int chunk = unit * SPAN + s;
#pragma unroll
        for (int t = 0; t < ROW_TILES; ++t) {
            into[s][t] = {};
            if (t * 8 + g < rows && (CHUNKS % SPAN == 0 || chunk < CHUNKS))
                into[s][t] = *reinterpret_cast<const uint4*>(mine + (long long)t * 8 * K_IN + chunk * 32);
        }
    };
    auto load_rows_early = [&](int unit) {
#pragma unroll
        for (int s = 0; s < SPAN; ++s)
            if (EARLY && !KEPT) load_rows(b[0], unit, s);
    };
    if (warp < UNITS) load_rows_early(warp);
    if (KEPT)
#pragma unroll
        for (int turn = 0; turn < TURNS; ++turn)
#pragma unroll
            for (int s = 0; s < SPAN; ++s)
                if (turn * WARPS + warp < UNITS) load_rows(b[KEPT ? turn : 0], turn * WARPS + warp, s);
    // A warp per row, in an order that no configuration changes, and now, while weights are still on their way.
    if (SCALED)
#pragma unroll 1
        for (int row = warp; row < rows; row += WARPS * AT_ONCE) {
            float4 four[AT_ONCE][EACH];
#pragma unroll
            for (int n = 0; n < AT_ONCE; ++n) {
                const float4* of = reinterpret_cast<const float4*>(squares + (row + n * WARPS) * SQUARES);
#pragma unroll
                for (int e = 0; e < EACH; ++e) {
                    const bool there = row + n * WARPS < rows && lane + 32 * e < SQUARES / 4;
                    four[n][e] = there ? of[lane + 32 * e] : float4{};
                }
            }
#pragma unroll
            for (int n = 0; n < AT_ONCE; ++n) {
                float sum = 0;
#pragma unroll
                for (int e = 0; e < EACH; ++e) sum += (four[n][e].x + four[n][e].y) + (four[n][e].z + four[n][e].w);
                sum = warp_sum(sum);
                if (lane == 0 && row + n * WARPS < rows) factor[row + n * WARPS] = rsqrtf(sum / K_IN + eps);
            }
        }
    int stage = 0;
    bool first = true;  // of a block's units
#pragma unroll 1
    for (int group = blockIdx.x; group < GROUPS; group += GRID) {
        auto place = [&](int tile, int& row, int& column) {
            row = tile / WEIGHT_TILES * 8 + finished;
            column = column_of(group, tile);
            return row < rows && column < N_OUT;
        };
        // What the sums will be finished with is asked for now, and used when they are there.
        if (PASSES > 1 && group != blockIdx.x) gain = gain_of(group);
        float before = 0;
        if (EPILOGUE == RESIDUAL && own < TILES) {
            int row, column;
            if (place(own, row, column)) before = static_cast<const float*>(out)[(long long)row * N_OUT + column];
        }
        unsigned least = 0;  // that the row of this thread's number has by now
        if (CHOOSES && threadIdx.x < rows) least = logit_of(so_far(choices + threadIdx.x));

        float acc[WEIGHT_TILES][ROW_TILES][4] = {};
        auto multiply = [&](int unit, const uint4(&x_rows)[SPAN][ROW_TILES]) {
            uint4 a[SPAN][WEIGHT_TILES][2];
            if (!first) {
                load_rows_early(unit);  // before the weights, behind which they would wait
                // The unit before this one has been used: its place is for the one that comes STAGES after it.
                fetch(stage == 0 ? STAGES - 1 : stage - 1);
                end_of_group();
            }
            first = false;
            await_copies<STAGES - 1>();
#pragma unroll
            for (int s = 0; s < SPAN; ++s)
#pragma unroll
                for (int j = 0; j < WEIGHT_TILES; ++j) {
                    a[s][j][0] = memory[slot(stage, s, j)];
                    a[s][j][1] = memory[slot(stage, s, j) + 32];
                }
            stage = stage == STAGES - 1 ? 0 : stage + 1;
#pragma unroll
            for (int s = 0; s < SPAN; ++s) {
                if (!EARLY && !KEPT) load_rows(b[0], unit, s);
                if (CHUNKS % SPAN && unit * SPAN + s >= CHUNKS) continue;
#pragma unroll
                for (int t = 0; t < ROW_TILES; ++t)
                    if (t < tiles)
#pragma unroll
                        for (int j = 0; j < WEIGHT_TILES; ++j) mma_k32(acc[j][t], a[s][j][0], a[s][j][1], x_rows[s][t]);
            }
        };
        if (KEPT) {  // unrolled: registers have no index
#pragma unroll
            for (int turn = 0; turn < TURNS; ++turn)
                if (turn * WARPS + warp < UNITS) multiply(turn * WARPS + warp, b[KEPT ? turn : 0]);
        } else {
#pragma unroll 1
            for (int unit = warp; unit < UNITS; unit += WARPS) multiply(unit, b[0]);
        }
        if (PASSES == 1) await_copies<0>();
        // Of one pass, nobody may still need the ring; of more, the sums of the pass before.
        __syncthreads();
        if (CHOOSES && threadIdx.x < ROW_TILES * 8) to_beat[threadIdx.x] = least;

        // Tile t · WEIGHT_TILES + j; element 32 · i + l of a tile is C's c_i of lane l.
        float(*sums)[ROUND][128] = reinterpret_cast<float(*)[ROUND][128]>(memory + (PASSES > 1 ? RING : 0));
#pragma unroll
        for (int from = 0; from < TILES; from += ROUND) {
            if (from / WEIGHT_TILES >= tiles) break;
            if (from) __syncthreads();
#pragma unroll
            for (int n = 0; n < ROUND; ++n)
                if (from + n < TILES && warp < WORKING)
#pragma unroll
                    for (int i = 0; i < 4; ++i)
                        sums[warp][n][32 * i + lane] = acc[(from + n) % WEIGHT_TILES][(from + n) / WEIGHT_TILES][i];
            __syncthreads();
            if (EPILOGUE == SWIGLU && half >= 2) continue;  // the other half of a tile belongs to the same features
            for (int n = own; n < ROUND && from + n < TILES; n += WARPS / 4) {
                float total = 0, up = 0;
#pragma unroll
                for (int w = 0; w < WORKING; ++w) {
                    total += sums[w][n][element];
                    if (EPILOGUE == SWIGLU) up += sums[w][n][element + 64];
                }
                int row, column;
                const bool wanted = place(from + n, row, column);
                const long long at = (long long)row * N_OUT + column;
                if (SCALED && wanted) {
                    total *= factor[row];
                    up *= factor[row];
                }
                if (EPILOGUE == PLAIN && wanted) static_cast<float*>(out)[at] = total;
                if (CHOOSES) {
                    Choice best = wanted ? choice(total, column) : 0;  // among the eight columns that lanes c, c + 4, … hold
#pragma unroll
                    for (int step = 16; step >= 4; step /= 2) best = max(best, __shfl_xor_sync(FULL_WARP, best, step));
                    if (g == 0 && best > (Choice)to_beat[row] << 32) atomicMax(choices + row, best);
                }
                if (EPILOGUE == SWIGLU && wanted) static_cast<bf16*>(out)[at] = to_bf16(total / (1 + __expf(-total)) * up);
                if (EPILOGUE == RESIDUAL) {
                    float* stream = static_cast<float*>(out);
                    float value = 0;
                    if (wanted) stream[at] = value = (from + n == own ? before : stream[at]) + total;
                    if (FEEDS_NORM) {
                        if (wanted) normed[at] = to_bf16(value * (from + n == own ? gain : to_float(norm_weight[column])));
                        float square = value * value;  // summed over the eight columns that lanes c, c + 4, … hold
#pragma unroll
                        for (int step = 16; step >= 4; step /= 2) square += __shfl_xor_sync(FULL_WARP, square, step);
                        if (g == 0 && wanted) normed_squares[at / 8] = square;
                    }
                }
            }
        }
    }
}
