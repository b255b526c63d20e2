// What kernels need of CUDA, for a C++ compiler. A block's threads are fibers of one thread of the system, which change where
// they wait for their warp or their block; blocks run one after the other. Asynchronous copies arrive when they are waited for
// and not before, and what has not arrived is not there.
#include <setjmp.h>
#include <ucontext.h>

#include <cmath>
#include <cstring>
#include <vector>

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

// ── threads ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

const int LANES = 32;

enum class State { RUNS, WAITS_FOR_WARP, WAITS_FOR_BLOCK, HAS_ENDED };

struct Copy {
    void* to;
    const void* from;
};

struct Fiber {
    jmp_buf place;  // where it goes on
    State state;
    std::vector<std::vector<Copy>> groups;  // of copies that have not arrived, the oldest first
    std::vector<Copy> open;
    unsigned operands[6];  // what the other lanes of its warp may read
};

static jmp_buf scheduler;
static Fiber* current;
static Fiber fibers[1024];
static Place threadIdx, blockIdx, gridDim;
static std::vector<uint4> dynamic_memory;

#define __device__
#define __host__
#define __forceinline__ inline
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__ static
#define __expf std::exp
#define __logf std::log
using std::fmaf;
using std::fminf;

template <typename Value>
static Value max(Value a, Value b) {
    return a < b ? b : a;
}
template <typename Value>
static Value min(Value a, Value b) {
    return b < a ? b : a;
}
template <typename Value>
static Value exchanged(Value& at, Value value) {
    const Value before = at;
    at = value;
    return before;
}

// Unlike swapcontext it calls nothing of the system, which a signal mask would need.
__attribute__((noinline)) static void change(jmp_buf& from, jmp_buf& to) {
    if (_setjmp(from) == 0) _longjmp(to, 1);
}
static void wait_as(State state) {
    current->state = state;
    change(current->place, scheduler);
}
static void __syncwarp() { wait_as(State::WAITS_FOR_WARP); }
static void __syncthreads() { wait_as(State::WAITS_FOR_BLOCK); }
static void __threadfence() {}

static int2 make_int2(int x, int y) { return {x, y}; }
static float2 make_float2(float x, float y) { return {x, y}; }
static float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

static Fiber& lane(unsigned number) { return fibers[threadIdx.x / LANES * LANES + number % LANES]; }

// Every lane shows `value`, and sees what `picked` makes of those that all lanes show.
template <typename Value, typename Picked>
static Value shared_in_warp(Value value, Picked picked) {
    std::memcpy(current->operands, &value, sizeof value);
    __syncwarp();
    const Value result = picked([](unsigned number) {
        Value other;
        std::memcpy(&other, lane(number).operands, sizeof other);
        return other;
    });
    __syncwarp();
    return result;
}

template <typename Value>
static Value __shfl_xor_sync(unsigned, Value value, int mask) {
    return shared_in_warp(value, [&](auto of) { return of(threadIdx.x ^ mask); });
}
template <typename Value>
static Value __shfl_sync(unsigned, Value value, int from) {
    return shared_in_warp(value, [&](auto of) { return of(from); });
}
static int __shfl_up_sync(unsigned, int value, int step) {
    const int own = threadIdx.x % LANES;
    return shared_in_warp(value, [&](auto of) { return of(own >= step ? own - step : own); });
}
static unsigned __reduce_max_sync(unsigned, unsigned value) {
    return shared_in_warp(value, [](auto of) {
        unsigned best = of(0);
        for (int n = 1; n < LANES; ++n) best = max(best, of(n));
        return best;
    });
}
static unsigned __reduce_min_sync(unsigned, unsigned value) {
    return shared_in_warp(value, [](auto of) {
        unsigned best = of(0);
        for (int n = 1; n < LANES; ++n) best = min(best, of(n));
        return best;
    });
}
static unsigned __ballot_sync(unsigned, bool vote) {
    return shared_in_warp<unsigned>(vote, [](auto of) {
        unsigned votes = 0;
        for (int n = 0; n < LANES; ++n) votes |= of(n) << n;
        return votes;
    });
}
template <typename Value, typename More>
static Value atomicAdd(Value* at, More more) {
    return exchanged(*at, Value(*at + more));
}
template <typename Value>
static Value atomicMax(Value* at, Value value) {
    return exchanged(*at, max(*at, value));
}
static int atomicExch(int* at, int value) { return exchanged(*at, value); }
static int atomicOr(int* at, int bits) { return exchanged(*at, *at | bits); }
static unsigned long long atomicOr(unsigned long long* at, unsigned long long bits) { return exchanged(*at, *at | bits); }
template <typename Value>
static Value __ldcg(const Value* at) {
    return *at;
}

// ── numbers ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

template <typename To, typename From>
static To with_bits(From from) {
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}
static float __uint_as_float(unsigned bits) { return with_bits<float>(bits); }
static unsigned __float_as_uint(float value) { return with_bits<unsigned>(value); }
static float __int_as_float(int bits) { return with_bits<float>(bits); }
static int __popc(unsigned bits) { return __builtin_popcount(bits); }
static int __popcll(long long bits) { return __builtin_popcountll(bits); }
static int __ffsll(long long bits) { return __builtin_ffsll(bits); }
static long long __double_as_longlong(double value) { return with_bits<long long>(value); }
static double __longlong_as_double(long long bits) { return with_bits<double>(bits); }
static float __fdividef(float x, float y) { return x / y; }
static float rsqrtf(float x) { return 1 / std::sqrt(x); }

// To the next float that is not less.
static float __double2float_ru(double value) {
    const float nearest = (float)value;
    return nearest < value ? std::nextafter(nearest, INFINITY) : nearest;
}

// To nearest, ties to even; not for NaN.
static unsigned rounded_bits(float value) {
    const unsigned bits = with_bits<unsigned>(value);
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
// Two products of bfloat16 each.
static unsigned product_bits(unsigned a, unsigned b) {
    const unsigned low = rounded_bits(__uint_as_float(a << 16) * __uint_as_float(b << 16));
    return rounded_bits(__uint_as_float(a & 0xffff0000u) * __uint_as_float(b & 0xffff0000u)) << 16 | low;
}
static unsigned short half_bits(float value) { return with_bits<unsigned short>((_Float16)value); }
static float half(unsigned bits) { return (float)with_bits<_Float16>((unsigned short)bits); }

static float brain(unsigned bits) { return __uint_as_float(bits << 16); }

// m16n8k16: fragments as mma.cuh describes them, of numbers that `number` reads. Sums are of float32, so that they depend on
// the places of their terms, as they may on a GPU.
template <float (*number)(unsigned)>
static void multiplied(float (&d)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1, float c0,
                       float c1, float c2, float c3) {
    const unsigned own[6] = {a0, a1, a2, a3, b0, b1};
    std::memcpy(current->operands, own, sizeof own);
    __syncwarp();
    const int g = threadIdx.x % LANES / 4, c = threadIdx.x % 4;
    const float before[4] = {c0, c1, c2, c3};
    float result[4];
    for (int i = 0; i < 4; ++i) {
        float sum = before[i];
        for (int k = 0; k < 4; ++k) {  // a lane's k: two of the first eight, and two of the others
            const unsigned *a = lane(g * 4 + k).operands, *b = lane((2 * c + i % 2) * 4 + k).operands;
            for (int second = 0; second < 2; ++second) {
                const unsigned row = a[i / 2 + 2 * second], column = b[4 + second];
                sum += number(row & 0xffff) * number(column & 0xffff) + number(row >> 16) * number(column >> 16);
            }
        }
        result[i] = sum;
    }
    __syncwarp();
    std::memcpy(d, result, sizeof result);
}

// ── copies ───────────────────────────────────────────────────────────────────────────────────────────────────────────────

static void begun(unsigned to, const void* from) {
    current->open.push_back({reinterpret_cast<char*>(dynamic_memory.data()) + to, from});
}
static void grouped() {
    current->groups.push_back(current->open);
    current->open.clear();
}
static void arrived(unsigned pending) {
    while (current->groups.size() > pending) {
        for (const Copy& copy : current->groups.front()) std::memcpy(copy.to, copy.from, 16);
        current->groups.erase(current->groups.begin());
    }
}

// ── launches ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

static void (*body)();
static ucontext_t maker;

// It begins with the first block and goes on with every other.
static void fiber_body() {
    if (_setjmp(current->place) == 0) setcontext(&maker);
    for (;;) {
        body();
        wait_as(State::HAS_ENDED);
    }
}

static void make_fiber(Fiber& fiber) {
    const std::size_t STACK = 128 << 10;
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = new char[STACK];  // for as long as the library is there
    context.uc_stack.ss_size = STACK;
    context.uc_link = nullptr;
    makecontext(&context, fiber_body, 0);
    current = &fiber;
    swapcontext(&maker, &context);
}

// Let every fiber of [first, last) run until it waits.
static void run_fibers(unsigned first, unsigned last) {
    for (unsigned n = first; n < last; ++n)
        while (fibers[n].state == State::RUNS) {
            current = &fibers[n];
            threadIdx = {n, 0, 0};
            change(scheduler, current->place);
        }
}

// Whether all fibers of [first, last) that have not ended wait so; they run on then.
static bool go_on(unsigned first, unsigned last, State waiting) {
    bool some = false;
    for (unsigned n = first; n < last; ++n) {
        if (fibers[n].state == State::HAS_ENDED) continue;
        if (fibers[n].state != waiting) return false;
        some = true;
    }
    for (unsigned n = first; n < last; ++n)
        if (fibers[n].state == waiting) fibers[n].state = State::RUNS;
    return some;
}

static void launched(void (*kernel)(), unsigned columns, unsigned rows, unsigned layers, unsigned threads,
                     unsigned shared_bytes) {
    static unsigned made = 0;
    for (; made < threads; ++made) make_fiber(fibers[made]);
    body = kernel;
    gridDim = {columns, rows, layers};
    for (unsigned block = 0; block < columns * rows * layers; ++block) {
        blockIdx = {block % columns, block / columns % rows, block / columns / rows};
        dynamic_memory.assign(shared_bytes / 16 + 1, uint4{0x7e007e00, 0x7e007e00, 0x7e007e00, 0x7e007e00});
        for (unsigned n = 0; n < threads; ++n) {
            Fiber& fiber = fibers[n];
            fiber.state = State::RUNS;
            fiber.groups.clear();
            fiber.open.clear();
        }
        do {
            for (unsigned n = 0; n < threads; n += LANES) {
                const unsigned end = min(n + LANES, threads);
                do run_fibers(n, end);
                while (go_on(n, end, State::WAITS_FOR_WARP));
            }
        } while (go_on(0, threads, State::WAITS_FOR_BLOCK));
    }
}
