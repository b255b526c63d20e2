// out = SiLU(gate) · up, in float32, rounded once: what stands between the two products of a feed-forward part.
//
// A thread has eight elements. Layouts: gate_up [row][2 · INTERMEDIATE], gates first; out [row][INTERMEDIATE].
#include "dependent.cuh"
#include "eights.cuh"

static_assert(INTERMEDIATE % 8 == 0, "INTERMEDIATE must be a multiple of 8");

struct PrefillGateArguments {  // launched on [(rows * (INTERMEDIATE / 8) - 1) / THREADS + 1]
    bf16* out;                 // [rows, INTERMEDIATE]
    const bf16* gate_up;       // [rows, 2 * INTERMEDIATE]
    int rows;
};

// Fast exponential and quotient: their errors are some hundredths of what rounding to bfloat16 may be off by.
__device__ __forceinline__ float silu(float x) { return __fdividef(x, 1.0f + __expf(-x)); }

extern "C" __global__ __launch_bounds__(THREADS) void prefill_gate(const PrefillGateArguments args) {
    await_previous();
    const int GROUPS = INTERMEDIATE / 8;
    const long long index = (long long)blockIdx.x * THREADS + threadIdx.x, row = index / GROUPS, group = index % GROUPS;
    if (row >= args.rows) return;
    const uint4* in = reinterpret_cast<const uint4*>(args.gate_up + row * 2 * INTERMEDIATE);
    float gate[8], up[8], out[8];
    unpack(gate, in[group]);
    unpack(up, in[GROUPS + group]);
#pragma unroll
    for (int i = 0; i < 8; ++i) out[i] = silu(gate[i]) * up[i];
    reinterpret_cast<uint4*>(args.out)[index] = packed(out);
}
