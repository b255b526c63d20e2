// The second product of a mixture of experts for few rows of prompts: out = act[pair] · downᵀ of the pair's expert, to which
// prefill_mixture.cu adds the bias. How it multiplies: packed_products.cuh.
//
// Layouts: out [pair][TILES · 16], pairs sorted by their expert; act [pair][K_IN] float16; weight as packing.py leaves it.
#include "bf16.cuh"
#include "dependent.cuh"
#include "packed_products.cuh"

struct PrefillDownArguments {                 // launched on [min(PROCESSORS, ROW_GROUPS * GROUPS)] where !PAIRED_ROWS
    bf16* out;                                // [PAIRS, 16 * TILES]
    const fp16* x;                            // [PAIRS, K_IN]
    const unsigned char* weight;              // [EXPERTS, TILES, TILE_BYTES]
    const int* top_scale;                     // [EXPERTS]
    const int *row_groups, *row_group_count;  // [_, 4 + ROW_GROUP], [1]
};

struct Rounding {
    bf16* out;

    __device__ __forceinline__ Rounding(const PrefillDownArguments& args, const RowGroup&, int first, const Thread& me)
        : out(args.out + first * 16 + me.g) {}

    __device__ __forceinline__ void operator()(int j, long long pair, float low, float high) const {
        bf16* at = out + pair * (TILES * 16) + j * 16;
        at[0] = to_bf16(low);
        at[8] = to_bf16(high);
    }
};

extern "C" __global__ __launch_bounds__(THREADS, 1) void prefill_down(const __grid_constant__ PrefillDownArguments args) {
    await_previous();
    multiply_row_groups<Rounding>(args);
}
