// out[w] = XOR of the w-th tile of `words`: reads memory and does next to nothing else, to measure its bandwidth.
//
// A warp reads a tile of 32 · LOADS · 4 words with 16-byte loads, all in flight at once. The result keeps the compiler from
// leaving the reads out.
#include "block.cuh"
#include "dependent.cuh"

struct ReadMemoryArguments {  // launched on [WORDS / THREADS / (4 * LOADS)] where WORDS % (THREADS * 4 * LOADS) == 0
    int* out;                 // [WORDS / (128 * LOADS)]
    const int4* words;        // [WORDS]
};

extern "C" __global__ __launch_bounds__(THREADS) void read_memory(const ReadMemoryArguments args) {
    await_previous();
    const int warp = blockIdx.x * (THREADS / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    const int4* tile = args.words + (long long)warp * LOADS * 32;
    int4 loaded[LOADS];
#pragma unroll
    for (int i = 0; i < LOADS; ++i) loaded[i] = tile[i * 32 + lane];
    unsigned folded = 0;
#pragma unroll
    for (int i = 0; i < LOADS; ++i) folded ^= loaded[i].x ^ loaded[i].y ^ loaded[i].z ^ loaded[i].w;
    folded = __reduce_xor_sync(FULL_WARP, folded);
    if (lane == 0) args.out[warp] = folded;
}
