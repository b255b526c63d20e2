// What a kernel of a prefill needs of CUDA, for a C++ compiler: a block is as many threads as it has, and one block runs at a
// time. Enough for kernels that use shared memory, barriers and shuffles within whole warps; no tensor cores, no atomics.
#include <barrier>
#include <cmath>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

struct Place {
    unsigned x, y, z;
};
struct float2 {
    float x, y;
};
struct float4 {
    float x, y, z, w;
};
struct uint4 {
    unsigned x, y, z, w;
};

static thread_local Place threadIdx, blockIdx;
static std::unique_ptr<std::barrier<>> block_barrier;
static float lanes[1024];

#define __device__
#define __forceinline__ inline
#define __global__
#define __launch_bounds__(threads)
#define __shared__ static
#define __expf std::exp

static float2 make_float2(float x, float y) { return {x, y}; }
static float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static float __fdividef(float x, float y) { return x / y; }
static float rsqrtf(float x) { return 1 / std::sqrt(x); }
using std::fmaf;

static float __uint_as_float(unsigned bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

// To nearest, ties to even; not for NaN.
static unsigned rounded_bits(float value) {
    unsigned bits;
    std::memcpy(&bits, &value, sizeof bits);
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

// Two products of bfloat16 each.
static unsigned product_bits(unsigned a, unsigned b) {
    const unsigned low = rounded_bits(__uint_as_float(a << 16) * __uint_as_float(b << 16));
    return rounded_bits(__uint_as_float(a & 0xffff0000u) * __uint_as_float(b & 0xffff0000u)) << 16 | low;
}

static void __syncthreads() { block_barrier->arrive_and_wait(); }

static float __shfl_xor_sync(unsigned, float value, int mask) {
    lanes[threadIdx.x] = value;
    __syncthreads();
    const float other = lanes[threadIdx.x ^ mask];
    __syncthreads();
    return other;
}

template <typename Kernel>
static void launched(Kernel kernel, unsigned columns, unsigned rows, unsigned threads) {
    block_barrier = std::make_unique<std::barrier<>>(threads);
    std::vector<std::thread> block;
    for (unsigned thread = 0; thread < threads; ++thread)
        block.emplace_back([=] {
            for (unsigned y = 0; y < rows; ++y)
                for (unsigned x = 0; x < columns; ++x) {
                    threadIdx = {thread, 0, 0};
                    blockIdx = {x, y, 0};
                    kernel();
                    __syncthreads();
                }
        });
    for (std::thread& thread : block) thread.join();
}
