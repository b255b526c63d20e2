// What a kernel needs of CUDA, for a C++ compiler: a block is as many threads as it has, and one block runs at a time, its
// threads in turns that end at barriers. Enough for kernels that use shared memory, barriers, atomic operations and shuffles
// within whole warps; no tensor cores.
#include <ucontext.h>

#include <cmath>
#include <cstdlib>
#include <cstring>

struct Place {
    unsigned x, y, z;
};
struct int2 {
    int x, y;
};
struct uint2 {
    unsigned x, y;
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

static Place threadIdx, blockIdx, gridDim;

#define __device__
#define __forceinline__ inline
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__ static
#define __expf std::exp
#define __logf std::log

static int2 make_int2(int x, int y) { return {x, y}; }
static float2 make_float2(float x, float y) { return {x, y}; }
static float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static float __fdividef(float x, float y) { return x / y; }
static float rsqrtf(float x) { return 1 / std::sqrt(x); }
using std::fmaf;

template <typename Value>
static Value max(Value a, Value b) {
    return a < b ? b : a;
}
template <typename Value>
static Value min(Value a, Value b) {
    return b < a ? b : a;
}

template <typename To, typename From>
static To same_bits(From value) {
    static_assert(sizeof(To) == sizeof(From));
    To bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}
static float __uint_as_float(unsigned bits) { return same_bits<float>(bits); }
static unsigned __float_as_uint(float value) { return same_bits<unsigned>(value); }
static long long __double_as_longlong(double value) { return same_bits<long long>(value); }
static double __longlong_as_double(long long bits) { return same_bits<double>(bits); }

// To the next float that is not less.
static float __double2float_ru(double value) {
    const float nearest = (float)value;
    return nearest < value ? std::nextafter(nearest, INFINITY) : nearest;
}

// To nearest, ties to even; not for NaN.
static unsigned rounded_bits(float value) {
    const unsigned bits = __float_as_uint(value);
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

// ---- threads: each has a stack, and gives way at every barrier ---------------------------------------------------------

struct HostThread {
    ucontext_t context;
    void* stack;
    bool ended;
};
static HostThread block_threads[1024];
static ucontext_t scheduler;
static unsigned running, thread_count;
static const void* block_kernel;
static void (*call_kernel)(const void*);
const size_t STACK = 1 << 17;

static void __syncthreads() { swapcontext(&block_threads[running].context, &scheduler); }
static void __threadfence() {}

static void run_thread() {
    call_kernel(block_kernel);
    block_threads[running].ended = true;
}

// All threads up to the next barrier, again and again.
static void run_block() {
    for (unsigned n = 0; n < thread_count; ++n) {
        HostThread& thread = block_threads[n];
        if (!thread.stack) thread.stack = std::malloc(STACK);
        getcontext(&thread.context);
        thread.context.uc_stack = {thread.stack, 0, STACK};
        thread.context.uc_link = &scheduler;
        thread.ended = false;
        makecontext(&thread.context, run_thread, 0);
    }
    for (bool any = true; any;) {
        any = false;
        for (running = 0; running < thread_count; ++running) {
            if (block_threads[running].ended) continue;
            threadIdx = {running, 0, 0};
            swapcontext(&scheduler, &block_threads[running].context);
            any = true;
        }
    }
}

template <typename Kernel>
static void launched(const Kernel& kernel, unsigned columns, unsigned rows, unsigned threads) {
    block_kernel = &kernel;
    call_kernel = [](const void* of) { (*static_cast<const Kernel*>(of))(); };
    gridDim = {columns, rows, 1};
    thread_count = threads;
    for (unsigned y = 0; y < rows; ++y)
        for (unsigned x = 0; x < columns; ++x) {
            blockIdx = {x, y, 0};
            run_block();
        }
}

// ---- what threads do together ------------------------------------------------------------------------------------------

static unsigned long long lanes[1024];

template <typename Value>
static Value __shfl_xor_sync(unsigned, Value value, int mask) {
    const unsigned own = threadIdx.x;
    std::memcpy(&lanes[own], &value, sizeof value);
    __syncthreads();
    Value other;
    std::memcpy(&other, &lanes[own ^ mask], sizeof other);
    __syncthreads();
    return other;
}

template <typename Value, typename More>
static Value atomicAdd(Value* at, More more) {
    const Value before = *at;
    *at += more;
    return before;
}

template <typename Value>
static Value atomicMax(Value* at, Value value) {
    const Value before = *at;
    *at = max(before, value);
    return before;
}

static int atomicExch(int* at, int value) {
    const int before = *at;
    *at = value;
    return before;
}

static int atomicOr(int* at, int bits) {
    const int before = *at;
    *at |= bits;
    return before;
}
