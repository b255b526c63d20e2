// The first product of a mixture of experts: act[pair] = clamped SwiGLU(x[row] · gate_upᵀ + bias) of the pair's expert, for the
// pairs of a row and its PER_TOKEN experts (routing.cuh). How it multiplies: expert_matmul.cuh.
//
// A tile has eight gate rows, as rows 0 … 7, and the up rows beside them, as rows 8 … 15. With gate at most LIMIT and up within
// ±LIMIT, act = gate · σ(ALPHA · gate) · (up + 1).
//
// Layouts: act [pair][N_OUT] float16; x [row][K_IN] float16; weight as packing.py leaves it; bias [expert][N_OUT][gate, up];
// logits [row][EXPERTS].
#include "bf16.cuh"
#include "dependent.cuh"
#include "expert_matmul.cuh"

static_assert(TILES_OF_EXPERT * 8 == N_OUT, "N_OUT must be a multiple of 8: a tile has eight gate rows");

struct ExpertGateUpArguments {    // launched on [BLOCKS] where R <= MOST && PAIRED_ROWS
    fp16* act;                    // [R * PER_TOKEN, N_OUT]
    const fp16* x;                // [R, K_IN]
    const unsigned char* weight;  // [EXPERTS, TILES_OF_EXPERT, TILE_BYTES]
    const bf16* bias;             // [EXPERTS, 2 * N_OUT]
    const float* logits;          // [R, EXPERTS]
    const int* active_count;      // [1]
    int rows_per_slot;
};

// Not fminf and fmaxf: they would make a number of NaN.
__device__ __forceinline__ float clamped_swiglu(float gate, float up) {
    const float limit = LIMIT;
    gate = gate > limit ? limit : gate;
    up = up > limit ? limit : up < -limit ? -limit : up;
    return gate / (1 + __expf(-(float)ALPHA * gate)) * (up + 1);
}

// The `n`-th that a thread finishes of an item: a gate and the up beside it, of one column of x.
const int FINISHED = WEIGHT_TILES * 64, ROUNDS = (FINISHED + THREADS - 1) / THREADS;
struct Finisher {
    const int number, tile, element, row, feature;

    __device__ __forceinline__ explicit Finisher(int n)
        : number(n * THREADS + threadIdx.x),
          tile(number / 64),
          element(number % 64),
          row(element % 4 * 2 + element / 32),  // of the row group
          feature(element % 32 / 4) {}

    __device__ __forceinline__ bool exists() const { return FINISHED % THREADS == 0 || number < FINISHED; }

    // Column of act; all threads that finish nothing have one, too.
    __device__ __forceinline__ int column(int group) const {
        return (group * WEIGHT_TILES + tile % WEIGHT_TILES) * 8 + feature;
    }
};

extern "C" __global__ __launch_bounds__(THREADS,
                                        BLOCKS_PER_SM) void expert_gate_up(const __grid_constant__ ExpertGateUpArguments args) {
    const Thread me;
    // No kernel directly before this one changes how many rows there are.
    const int count = *args.active_count * args.rows_per_slot;
    await_previous();
    let_next_start();
    if (count == 0) return;
    route_rows(args.logits, count, me);
    ExpertRing ring(args.weight, me);
    Walk walk;
    Source here = ring.source(walk);
    ring.fill(here);

    int turn = 0;
#pragma unroll 1
    while (!walk.is_over()) {
        const Item item = walk.item();
        walk.advance();
        const RowGroup& row_group = routing.row_groups[item.row_group];
        const RowGroupRows rows(args.x, row_group, [](int pair) { return pair / PER_TOKEN; }, me);
        unsigned biases[ROUNDS];
#pragma unroll
        for (int n = 0; n < ROUNDS; ++n) {
            const long long at = 2 * ((long long)row_group.expert * N_OUT + Finisher(n).column(item.group));
            biases[n] = *reinterpret_cast<const unsigned*>(args.bias + at);
        }

        Sums sums = {};
        multiply_item(sums, ring, rows, here, ring.source(walk));
        const SharedSums shared = shared_sums(turn++);
        store_sums(shared, sums, me);
#pragma unroll
        for (int n = 0; n < ROUNDS; ++n) {
            const Finisher own(n);
            if (!own.exists() || own.row >= row_group.count) continue;
            const int pair = routing.members[row_group.start + own.row];
            const float gate = add_warps(shared, own.tile, own.element) + to_float((bf16)(biases[n] & 0xffff));
            const float up = add_warps(shared, own.tile, own.element + 64) + to_float((bf16)(biases[n] >> 16));
            args.act[(long long)pair * N_OUT + own.column(item.group)] = to_fp16(clamped_swiglu(gate, up));
        }
    }
    await_copies<0>();
}
