// What kernels need of CUDA, for a C++ compiler. A block's threads are fibers of one thread of the system, which change where
// they wait for their warp or their block; blocks run one after the other. Asynchronous copies arrive when they are waited for
// and not before, and what has not arrived is not there.
//
// Hundreds of kernels are compiled with it, most of them shorter than the C++ library's headers. So nothing of that library is
// in here, and what need not be compiled anew with each kernel is in host.cpp.
#pragma once

#pragma GCC visibility push(hidden)  // of a library: its own host.cpp, at addresses that need no table

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

// POLLS: waits for a barrier of shared memory, and asks again once all others have gone on.
enum class State { RUNS, WAITS_FOR_WARP, WAITS_FOR_BLOCK, POLLS, HAS_ENDED };

// Where to go on, as GCC's own jumps have it: they keep no more than they must. The C library's keep a signal mask and look
// for what has to be cleaned up on the way, which took as long as the kernels.
typedef void* Jump[5];

struct Fiber {
    Jump place;
    State state;
    // What the other lanes of its warp may read: of this exchange and of the one before it, which some may still be reading.
    // Who writes over the latter has met all others in the former.
    unsigned operands[2][12];
    unsigned turn;
};

extern Fiber* current;
extern Fiber fibers[1024];
extern Place threadIdx, blockIdx, gridDim;
extern uint4* dynamic_memory;  // of the block that runs

#define __device__
#define __host__
#define __forceinline__ inline
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__ static
#define __expf __builtin_expf
#define __logf __builtin_logf

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

// Go on in the next fiber of the warp that runs; where there is none, in the scheduler.
void wait_as(State state);
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
    const unsigned turn = current->turn ^= 1;
    __builtin_memcpy(current->operands[turn], &value, sizeof value);
    __syncwarp();
    return picked([turn](unsigned number) {
        Value other;
        __builtin_memcpy(&other, lane(number).operands[turn], sizeof other);
        return other;
    });
}

template <typename Value>
static Value __shfl_xor_sync(unsigned, Value value, int mask) {
    return shared_in_warp(value, [&](auto of) { return of(threadIdx.x ^ mask); });
}
template <typename Value>
static Value __shfl_sync(unsigned, Value value, int from) {
    return shared_in_warp(value, [&](auto of) { return of(from); });
}
template <typename Value>
static Value __shfl_up_sync(unsigned, Value value, int step) {
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
static unsigned __match_any_sync(unsigned, int value) {
    return shared_in_warp(unsigned(value), [value](auto of) {
        unsigned equal = 0;
        for (int n = 0; n < LANES; ++n) equal |= unsigned(of(n) == unsigned(value)) << n;
        return equal;
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
template <typename Value>
static Value atomicMin(Value* at, Value value) {
    return exchanged(*at, min(*at, value));
}
static int atomicExch(int* at, int value) { return exchanged(*at, value); }
static int atomicOr(int* at, int bits) { return exchanged(*at, *at | bits); }
static unsigned atomicXor(unsigned* at, unsigned bits) { return exchanged(*at, *at ^ bits); }
static unsigned atomicOr(unsigned* at, unsigned bits) { return exchanged(*at, *at | bits); }
static unsigned long long atomicOr(unsigned long long* at, unsigned long long bits) { return exchanged(*at, *at | bits); }
template <typename Value>
static Value __ldcg(const Value* at) {
    return *at;
}

// ── numbers ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

template <typename To, typename From>
static To with_bits(From from) {
    To to;
    __builtin_memcpy(&to, &from, sizeof to);
    return to;
}
static float __uint_as_float(unsigned bits) { return with_bits<float>(bits); }
static unsigned __float_as_uint(float value) { return with_bits<unsigned>(value); }
static float __int_as_float(int bits) { return with_bits<float>(bits); }
static int __popc(unsigned bits) { return __builtin_popcount(bits); }
static int __popcll(long long bits) { return __builtin_popcountll(bits); }
static int __clzll(long long bits) { return bits ? __builtin_clzll(bits) : 64; }
static int __ffsll(long long bits) { return __builtin_ffsll(bits); }
static long long __double_as_longlong(double value) { return with_bits<long long>(value); }
static double __longlong_as_double(long long bits) { return with_bits<double>(bits); }
static float __fdividef(float x, float y) { return x / y; }
static float sqrt(float x) { return __builtin_sqrtf(x); }
static double sqrt(double x) { return __builtin_sqrt(x); }
static float exp(float x) { return __builtin_expf(x); }
static double exp(double x) { return __builtin_exp(x); }
static float log(float x) { return __builtin_logf(x); }
static double log(double x) { return __builtin_log(x); }
static double fma(double x, double y, double z) { return __builtin_fma(x, y, z); }
static float fmaf(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
static float fabsf(float x) { return __builtin_fabsf(x); }
static float fmaxf(float x, float y) { return __builtin_fmaxf(x, y); }
static float fminf(float x, float y) { return __builtin_fminf(x, y); }
static float logf(float x) { return __builtin_logf(x); }
static float rsqrtf(float x) { return 1 / sqrt(x); }

// To the next float that is not less.
static float __double2float_ru(double value) {
    const float nearest = (float)value;
    return nearest < value ? __builtin_nextafterf(nearest, __builtin_inff()) : nearest;
}

// As long as it lives, float32 below 2^-126 is what it is, or zero as operand and as result. CuPy has kernels compiled for the
// latter (-ftz=true). Other processors than x86's go on as they do.
struct Subnormals {
#ifdef __SSE2__
    const unsigned before = __builtin_ia32_stmxcsr();
    explicit Subnormals(bool kept) { __builtin_ia32_ldmxcsr(kept ? before & ~0x8040u : before | 0x8040u); }
    ~Subnormals() { __builtin_ia32_ldmxcsr(before); }
#else
    explicit Subnormals(bool) {}
#endif
};

// To nearest, ties to even.
static unsigned rounded_bits(float value) {
    const unsigned bits = with_bits<unsigned>(value);
    if (value != value) return 0x7fff;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
// Two products of bfloat16 each. Of these, subnormal ones are no zeros on a GPU either.
static unsigned product_bits(unsigned a, unsigned b) {
    const Subnormals kept(true);
    const unsigned low = rounded_bits(__uint_as_float(a << 16) * __uint_as_float(b << 16));
    return rounded_bits(__uint_as_float(a & 0xffff0000u) * __uint_as_float(b & 0xffff0000u)) << 16 | low;
}
static unsigned short half_bits(float value) { return with_bits<unsigned short>((_Float16)value); }
// Like (float) of a _Float16, for which there is an instruction on few CPUs and else a slow function. No float32 in it is
// subnormal, which would be zero here.
static float half(unsigned bits) {
    const unsigned magnitude = bits & 0x7fff, sign = (bits & 0x8000) << 16;
    const float finite = magnitude < 0x400 ? (float)magnitude * 0x1p-24f : with_bits<float>((magnitude << 13) + (112 << 23));
    const unsigned quiet = magnitude > 0x7c00 ? 0x400000 : 0;
    const unsigned infinite = 0x7f800000 | quiet | magnitude << 13;
    return with_bits<float>(sign | (magnitude < 0x7c00 ? with_bits<unsigned>(finite) : infinite));
}
// Two products of float16 each.
static unsigned half_product_bits(unsigned a, unsigned b) {
    return half_bits(half(a >> 16) * half(b >> 16)) << 16 | half_bits(half(a & 0xffff) * half(b & 0xffff));
}
// The larger of a + b and c, but 0 at least, of the signed numbers in both halves.
static unsigned __viaddmax_s16x2_relu(unsigned a, unsigned b, unsigned c) {
    unsigned result = 0;
    for (int at = 0; at < 32; at += 16) {
        const short sum = (a >> at) + (b >> at), other = c >> at, larger = sum > other ? sum : other;
        result |= (larger > 0 ? larger : 0u) << at;
    }
    return result;
}
// Bytes of a and b, 0 … 3 and 4 … 7, as the digits of `chosen` say.
static unsigned __byte_perm(unsigned a, unsigned b, unsigned chosen) {
    unsigned result = 0;
    for (int n = 0; n < 4; ++n) {
        const unsigned digit = chosen >> 4 * n & 7;
        result |= ((digit < 4 ? a : b) >> digit % 4 * 8 & 0xff) << 8 * n;
    }
    return result;
}

static float brain(unsigned bits) { return __uint_as_float(bits << 16); }

// m16n8k16: fragments as mma.cuh describes them, of bfloat16 or of float16. Sums are of float32, so that they depend on the
// places of their terms, as they may on a GPU.
void multiplied_brain(float (&d)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1, float c0,
                      float c1, float c2, float c3);
void multiplied_half(float (&d)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1, float c0,
                     float c1, float c2, float c3);

// ── copies ───────────────────────────────────────────────────────────────────────────────────────────────────────────────

void begun(unsigned to, const void* from);
void grouped();
void arrived(unsigned pending);

// Barriers of shared memory, and boxes of matrices, which arrive when somebody waits for their barrier and not before.
void barrier_made(unsigned at, unsigned arrivals);
void arrived_at(unsigned barrier, unsigned announced);
bool phase_has_ended(unsigned barrier, unsigned parity);
void box_begun(unsigned to, const void* map, int row, int column, unsigned barrier);

// Products of a warpgroup are made when they are waited for, of what lies in their boxes then.
void group_begun(float* sums, int row_tiles, unsigned long long a, unsigned long long b);
void group_begun(float* sums, int row_tiles, unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned long long b);
void groups_multiplied();

// ── other GPUs ───────────────────────────────────────────────────────────────────────────────────────────────────────────

// Each is a thread of the system, with libraries of its own.
static unsigned long long arrived_word(const unsigned long long* at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }
static void sent_word(unsigned long long* to, unsigned long long word) { __atomic_store_n(to, word, __ATOMIC_RELEASE); }
long long nanoseconds();

// ── launches ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

void launched(void (*kernel)(), unsigned columns, unsigned rows, unsigned layers, unsigned threads, unsigned shared_bytes);

#pragma GCC visibility pop
