// The first product of a mixture of experts for few rows of prompts, with its activation: act = SwiGLU(x[row] · gate_upᵀ +
// bias) of the pair's expert, with gate at most LIMIT and up within ±LIMIT. How it multiplies: packed_products.cuh.
//
// A tile has eight gate rows, as rows 0 … 7, and the up rows beside them, as rows 8 … 15.
//
// Layouts: act [pair][TILES · 8] float16, pairs sorted by their expert; x [row][K_IN] float16; weight as packing.py leaves it;
// bias [expert][TILES · 8][gate, up].
#include "bf16.cuh"
#include "clamped_swiglu.cuh"
#include "dependent.cuh"
#include "packed_products.cuh"

struct PrefillGateUpArguments {               // launched on [min(PROCESSORS, ROW_GROUPS * GROUPS)] where PAIRED_ROWS
    fp16* act;                                // [R * PER_TOKEN, 8 * TILES]
    const fp16* x;                            // [R, K_IN]
    const unsigned char* weight;              // [EXPERTS, TILES, TILE_BYTES]
    const bf16* bias;                         // [EXPERTS, 16 * TILES]
    const int* top_scale;                     // [EXPERTS]
    const int *row_groups, *row_group_count;  // [_, 4 + ROW_GROUP], [1]
};

const int FEATURES = TILES * 8;

struct Activation {
    fp16* act;
    const int first, g;
    unsigned biases[WEIGHT_TILES];

    __device__ __forceinline__ Activation(const PrefillGateUpArguments& args, const RowGroup& row_group, int first,
                                          const Thread& me)
        : act(args.act + (WGMMA ? 0 : first * 8 + me.g)), first(first), g(me.g) {
        const bf16* bias = args.bias + 2 * ((long long)row_group.expert * FEATURES + first * 8 + me.g);
#pragma unroll
        for (int j = 0; j < WEIGHT_TILES; ++j) biases[j] = *reinterpret_cast<const unsigned*>(bias + j * 16);
    }

    // Where this lane's feature of tile `first` + j lies.
    __device__ __forceinline__ int placed(int j) const {
        return WGMMA ? (first + j) / 4 * 32 + place_of_k((first + j) % 4, g) : j * 8;
    }

    __device__ __forceinline__ void operator()(int j, long long pair, float gate, float up) const {
        const float its = to_float((bf16)(biases[j] & 0xffff)), beside = to_float((bf16)(biases[j] >> 16));
        act[pair * FEATURES + placed(j)] = to_fp16(clamped_swiglu(gate + its, up + beside));
    }
};

extern "C" __global__ __launch_bounds__(THREADS, 1) void prefill_gate_up(const __grid_constant__ PrefillGateUpArguments args) {
    await_previous();
    multiply_row_groups<Activation>(args);
}
