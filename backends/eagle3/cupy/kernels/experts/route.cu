// The router's logits, and the normed rows that the experts multiply: logits[row][expert] = x[row] · router[expert] + bias and
// x16[row] = x[row], in float16, where x = normed / root mean square (pre-norm rows, as in matmul_rows.cu).
//
// A warp has one expert: it requests that row of the router before anything else is known, and multiplies it with ROWS rows of
// x. The order of additions is the same for every row. Each block also converts its share of its rows' columns.
//
// Layouts: logits [row][EXPERTS] float32; x16 and normed [row][HIDDEN]; squares [row][HIDDEN / 8]; router [EXPERTS][HIDDEN].
#include "bf16.cuh"
#include "block.cuh"
#include "dependent.cuh"
#include "fp16.cuh"
#include "mma.cuh"

static_assert(HIDDEN % 32 == 0, "HIDDEN must be a multiple of 32");

struct RouteArguments {         // launched on [EXPERT_BLOCKS, (R - 1) / ROWS + 1] where R <= MOST
    float* logits;              // [R, EXPERTS]
    fp16* x16;                  // [R, HIDDEN]
    const bf16* normed;         // [R, HIDDEN]
    const float* squares;       // [R, HIDDEN / 8]
    const bf16 *router, *bias;  // [EXPERTS, HIDDEN], [EXPERTS]
    const int* active_count;    // [1]
    int rows_per_slot;
    float eps;
};

const int THREADS = WARPS * 32;
const int EXPERT_BLOCKS = (EXPERTS + WARPS - 1) / WARPS;
const int EIGHTS = HIDDEN / 8;             // 16-byte loads of a row
const int EACH = (EIGHTS + 31) / 32;       // and those of a lane
const int FOURS = (EIGHTS / 4 + 31) / 32;  // sums of squares that a lane adds up, in fours

typedef uint4 LaneRow[EACH];

__shared__ float rms_factor[ROWS];  // 1 / sqrt(mean(x²) + eps)

__device__ __forceinline__ void load_row(LaneRow& into, const bf16* row, const Thread& me) {
#pragma unroll
    for (int n = 0; n < EACH; ++n) {
        const int at = me.lane + 32 * n;
        into[n] = at < EIGHTS ? reinterpret_cast<const uint4*>(row)[at] : uint4{};
    }
}

__device__ __forceinline__ float sum_of_products(const LaneRow& one, const LaneRow& other) {
    float sum = 0;
#pragma unroll
    for (int n = 0; n < EACH; ++n) {
        const unsigned *a = &one[n].x, *b = &other[n].x;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            sum = fmaf(to_float((bf16)(a[i] & 0xffff)), to_float((bf16)(b[i] & 0xffff)), sum);
            sum = fmaf(to_float((bf16)(a[i] >> 16)), to_float((bf16)(b[i] >> 16)), sum);
        }
    }
    return warp_sum(sum);
}

__device__ __forceinline__ void compute_rms_factors(const RouteArguments& args, int first, int rows, const Thread& me) {
    for (int row = me.warp; row < rows; row += WARPS) {
        const float4* of = reinterpret_cast<const float4*>(args.squares + (long long)(first + row) * EIGHTS);
        float sum = 0;
#pragma unroll
        for (int n = 0; n < FOURS; ++n) {
            const int at = me.lane + 32 * n;
            const float4 four = at < EIGHTS / 4 ? of[at] : float4{};
            sum += (four.x + four.y) + (four.z + four.w);
        }
        sum = warp_sum(sum);
        if (me.lane == 0) rms_factor[row] = rsqrtf(sum / HIDDEN + args.eps);
    }
}

__device__ __forceinline__ int own_eight() { return blockIdx.x * THREADS + threadIdx.x; }

// This block's share of the columns of its rows, eight elements at a time; `eight` is what a thread has of them first.
__device__ __forceinline__ void convert_rows(const RouteArguments& args, int first, int rows, uint4 eight) {
    const uint4* normed = reinterpret_cast<const uint4*>(args.normed) + (long long)first * EIGHTS;
    for (int n = own_eight(); n < rows * EIGHTS; n += EXPERT_BLOCKS * THREADS) {
        const float factor = rms_factor[n / EIGHTS];
        if (n != own_eight()) eight = normed[n];
        const unsigned* in = &eight.x;
        uint4 converted;
        unsigned* out = &converted.x;
#pragma unroll
        for (int i = 0; i < 4; ++i)
            out[i] = to_fp16(to_float((bf16)(in[i] & 0xffff)) * factor) |
                     (unsigned)to_fp16(to_float((bf16)(in[i] >> 16)) * factor) << 16;
        reinterpret_cast<uint4*>(args.x16)[(long long)first * EIGHTS + n] = converted;
    }
}

extern "C" __global__ __launch_bounds__(THREADS) void route(const __grid_constant__ RouteArguments args) {
    const Thread me;
    const int expert = blockIdx.x * WARPS + me.warp, first = blockIdx.y * ROWS;
    LaneRow weights, x;
    load_row(weights, args.router + (long long)min(expert, EXPERTS - 1) * HIDDEN, me);
    const float bias = to_float(args.bias[min(expert, EXPERTS - 1)]);
    const int rows = min(*args.active_count * args.rows_per_slot - first, ROWS);
    await_previous();
    let_next_start();
    if (rows <= 0) return;
    load_row(x, args.normed + (long long)first * HIDDEN, me);
    const uint4* normed = reinterpret_cast<const uint4*>(args.normed) + (long long)first * EIGHTS;
    const uint4 eight = own_eight() < rows * EIGHTS ? normed[own_eight()] : uint4{};  // a trip to the L2 cache, made early
    compute_rms_factors(args, first, rows, me);
    __syncthreads();
#pragma unroll 1
    for (int row = 0; row < rows; ++row) {
        if (row) load_row(x, args.normed + (long long)(first + row) * HIDDEN, me);
        const float sum = sum_of_products(weights, x);
        if (me.lane == 0 && expert < EXPERTS)
            args.logits[(long long)(first + row) * EXPERTS + expert] = sum * rms_factor[row] + bias;
    }
    convert_rows(args, first, rows, eight);
}
