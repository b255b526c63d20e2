// out[m][n] = Σ_k x[m][k] · weight[n][k] for the few rows m of a decode step, on tensor cores; float32 sums.
//
// One block makes FEATURES output features of all rows. The weight tile is A (16 features), eight rows of x are the columns
// of B; WARPS warps split k, warp w taking the 32-wide chunks w, w + WARPS, …; their sums are added in the order of the
// warps. Neither split nor order depends on the number of rows: a row's result alone is its result among others, bit for
// bit. So WARPS belongs to (N_OUT, K_IN), while ROW_TILES (rows / 8, rounded up) and IN_FLIGHT are free.
//
// Epilogues: PLAIN float32; RESIDUAL float32 += ; SWIGLU bfloat16 silu(gate) · up, gate and up being the halves of weight.
#include "bf16.cuh"
#include "mma.cuh"

#define PLAIN 0
#define RESIDUAL 1
#define SWIGLU 2

static_assert(K_IN % 32 == 0, "K_IN must be a multiple of 32: one chunk");
static_assert(WARPS % 4 == 0, "WARPS must be a multiple of 4: 128 threads finish a tile");

const int PARTS = EPILOGUE == SWIGLU ? 2 : 1;
const int CHUNKS = K_IN / 32;
const int TILES = ROW_TILES * PARTS;
const int ROUND = TILES < 4 ? TILES : 4;  // tiles that shared memory holds at a time

struct Operands {
    uint4 low[PARTS], high[PARTS], x[ROW_TILES];
};

// The second bound lets a block have all registers: left to itself, ptxas spills some kernels on sm_80 to fit two.
extern "C" __global__ __launch_bounds__(WARPS * 32, 1) void matmul_rows(void* out, const bf16* x, const bf16* weight,
                                                                        const int* active_count, int rows_per_slot) {
    __shared__ float sums[WARPS][ROUND][128];
    const int rows = *active_count * rows_per_slot;
    if (rows == 0) return;
    const int tiles = (rows + 7) / 8;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;

    const int feature = blockIdx.x * 16;
    const bf16 *low[PARTS], *high[PARTS];
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
        // The last block of an odd N_OUT reads its last row again and throws the result away.
        int first = min(feature + g, N_OUT - 1), second = min(feature + g + 8, N_OUT - 1);
        low[part] = weight + (long long)(part * N_OUT + first) * K_IN + 8 * c;
        high[part] = weight + (long long)(part * N_OUT + second) * K_IN + 8 * c;
    }
    const bf16* mine = x + (long long)g * K_IN + 8 * c;

    float acc[PARTS][ROW_TILES][4] = {};
    auto load = [&](Operands& o, int chunk) {
        const int k = chunk * 32;
#pragma unroll
        for (int part = 0; part < PARTS; ++part) {
            o.low[part] = load_streaming(low[part] + k);
            o.high[part] = load_streaming(high[part] + k);
        }
#pragma unroll
        for (int t = 0; t < ROW_TILES; ++t)
            if (t < tiles) o.x[t] = *reinterpret_cast<const uint4*>(mine + (long long)t * 8 * K_IN + k);
    };
    auto multiply = [&](const Operands& o) {
#pragma unroll
        for (int t = 0; t < ROW_TILES; ++t)
            if (t < tiles)
#pragma unroll
                for (int part = 0; part < PARTS; ++part) mma_k32(acc[part][t], o.low[part], o.high[part], o.x[t]);
    };

#pragma unroll 1
    for (int chunk = warp; chunk < CHUNKS; chunk += WARPS * IN_FLIGHT) {
        Operands operands[IN_FLIGHT];
#pragma unroll
        for (int i = 0; i < IN_FLIGHT; ++i)
            if (chunk + i * WARPS < CHUNKS) load(operands[i], chunk + i * WARPS);
#pragma unroll
        for (int i = 0; i < IN_FLIGHT; ++i)
            if (chunk + i * WARPS < CHUNKS) multiply(operands[i]);
    }

    // Tile `t · PARTS + part`; element e = 32 · i + lane of a tile is C's c_i of that lane.
#pragma unroll
    for (int first = 0; first < TILES; first += ROUND) {
        if (first / PARTS >= tiles) break;
        if (first) __syncthreads();
#pragma unroll
        for (int n = 0; n < ROUND; ++n)
            if (first + n < TILES)
#pragma unroll
                for (int i = 0; i < 4; ++i) sums[warp][n][32 * i + lane] = acc[(first + n) % PARTS][(first + n) / PARTS][i];
        __syncthreads();
        const int element = threadIdx.x % 128;
        for (int n = threadIdx.x / 128 * PARTS; n < ROUND; n += WARPS / 4 * PARTS) {
            float total[PARTS] = {};
#pragma unroll
            for (int w = 0; w < WARPS; ++w)
#pragma unroll
                for (int part = 0; part < PARTS; ++part) total[part] += sums[w][n + part][element];
            const int i = element / 32, l = element % 32;
            const int row = (first + n) / PARTS * 8 + 2 * (l % 4) + i % 2;
            const int column = feature + l / 4 + 8 * (i / 2);
            if (row >= rows || column >= N_OUT) continue;
            const long long at = (long long)row * N_OUT + column;
            if (EPILOGUE == PLAIN) static_cast<float*>(out)[at] = total[0];
            if (EPILOGUE == RESIDUAL) static_cast<float*>(out)[at] += total[0];
            if (EPILOGUE == SWIGLU)
                static_cast<bf16*>(out)[at] = to_bf16(total[0] / (1 + __expf(-total[0])) * total[PARTS - 1]);
        }
    }
}
