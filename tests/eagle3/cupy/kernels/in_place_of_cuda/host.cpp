// What is the same in every kernel's library: fibers and their scheduler, copies, and launches. See host.hpp.
#include <ucontext.h>

#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

// clang-format off: last, because it gives words such as __shared__ another meaning
#include "host.hpp"
// clang-format on

static Jump scheduler;
static Fiber* warp_end;
Fiber* current;
Fiber fibers[1024];
Place threadIdx, blockIdx, gridDim;
uint4* dynamic_memory;

// ── products ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

// Of numbers that `number` reads.
template <float (*number)(unsigned)>
static void multiplied(float (&d)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1, float c0,
                       float c1, float c2, float c3) {
    const unsigned own[6] = {a0, a1, a2, a3, b0, b1}, turn = current->turn ^= 1;
    float* numbers = (float*)current->operands[turn];
    for (int n = 0; n < 12; ++n) numbers[n] = number(own[n / 2] >> n % 2 * 16 & 0xffff);
    __syncwarp();
    const int g = threadIdx.x % LANES / 4, c = threadIdx.x % 4;
    typedef float Four __attribute__((vector_size(16)));
    Four sums = {c0, c1, c2, c3};  // of two rows by two columns
    for (int k = 0; k < 4; ++k) {  // a lane's k: two of the first eight, and two of the others
        const float* a = (float*)lane(g * 4 + k).operands[turn];
        const float *b = (float*)lane(2 * c * 4 + k).operands[turn] + 8,
                    *next = (float*)lane((2 * c + 1) * 4 + k).operands[turn] + 8;
        for (int second = 0; second < 2; ++second, a += 4, b += 2, next += 2)
            sums += Four{a[0], a[0], a[2], a[2]} * Four{b[0], next[0], b[0], next[0]} +
                    Four{a[1], a[1], a[3], a[3]} * Four{b[1], next[1], b[1], next[1]};
    }
    for (int i = 0; i < 4; ++i) d[i] = sums[i];
}

void multiplied_brain(float (&d)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1, float c0,
                      float c1, float c2, float c3) {
    multiplied<brain>(d, a0, a1, a2, a3, b0, b1, c0, c1, c2, c3);
}
void multiplied_half(float (&d)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1, float c0,
                     float c1, float c2, float c3) {
    multiplied<half>(d, a0, a1, a2, a3, b0, b1, c0, c1, c2, c3);
}

// ── copies ───────────────────────────────────────────────────────────────────────────────────────────────────────────────

struct Copy {
    void* to;
    const void* from;
};

struct Copies {
    std::vector<Copy> begun;
    std::vector<std::size_t> ends;  // of groups, in the order in which they were begun
    std::size_t arrived_groups, arrived;

    void clear() {
        begun.clear();
        ends.clear();
        arrived_groups = arrived = 0;
    }
};

static Copies copies[sizeof fibers / sizeof *fibers];
static Copies& own_copies() { return copies[current - fibers]; }

void begun(unsigned to, const void* from) {
    own_copies().begun.push_back({reinterpret_cast<char*>(dynamic_memory) + to, from});
}
void grouped() {
    Copies& own = own_copies();
    own.ends.push_back(own.begun.size());
}
void arrived(unsigned pending) {
    Copies& own = own_copies();
    for (; own.ends.size() - own.arrived_groups > pending; ++own.arrived_groups)
        for (; own.arrived < own.ends[own.arrived_groups]; ++own.arrived)
            std::memcpy(own.begun[own.arrived].to, own.begun[own.arrived].from, 16);
}

// ── other GPUs ───────────────────────────────────────────────────────────────────────────────────────────────────────────

long long nanoseconds() {
    // Whoever asks waits for another one, which may have to share a CPU with it.
    std::this_thread::sleep_for(std::chrono::microseconds(20));
    return std::chrono::steady_clock::now().time_since_epoch().count();
}

// ── threads ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

// The jump has a function of its own: in that of `from`, GCC would see that nothing returns, and leave the rest out.
__attribute__((noipa, unused)) static void jump(Jump& to) { __builtin_longjmp(to, 1); }
__attribute__((noipa)) static void change(Jump& from, Jump& to) {
#ifdef __x86_64__
    // The same without a call that never returns: behind one, the CPU predicts the next returns wrong. Lanes mostly wait at the
    // same place, so that the ones here are those of the lane before.
    void **own = from, **next = to;
    asm volatile(
        "mov %%rbp, (%0)\n lea 1f(%%rip), %%rax\n mov %%rax, 8(%0)\n mov %%rsp, 16(%0)\n"
        "mov (%1), %%rbp\n mov 16(%1), %%rsp\n jmp *8(%1)\n 1:"
        : "+r"(own), "+r"(next)::"rax", "rbx", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "cc",
          "memory");
#else
    if (__builtin_setjmp(from) == 0) jump(to);
#endif
}

static void enter(Jump& from, Fiber* fiber) {
    current = fiber;
    threadIdx.x = fiber - fibers;
    change(from, fiber->place);
}

void wait_as(State state) {
    Fiber *own = current, *next = own + 1;
    own->state = state;
    while (next < warp_end && next->state != State::RUNS) ++next;
    if (next < warp_end)
        enter(own->place, next);
    else
        change(own->place, scheduler);
}

// ── launches ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

static void (*body)();
static ucontext_t maker;

// It begins with the first block and goes on with every other.
static void fiber_body() {
    if (__builtin_setjmp(current->place) == 0) setcontext(&maker);
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

// Let every fiber of [first, last) run until it waits: each hands over to the next.
static void run_fibers(unsigned first, unsigned last) {
    warp_end = fibers + last;
    while (first < last && fibers[first].state != State::RUNS) ++first;
    if (first < last) enter(scheduler, fibers + first);
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

void launched(void (*kernel)(), unsigned columns, unsigned rows, unsigned layers, unsigned threads, unsigned shared_bytes) {
    static std::vector<uint4> bytes;
    static unsigned made = 0;
    const Subnormals flushed(false);
    for (; made < threads; ++made) make_fiber(fibers[made]);
    body = kernel;
    gridDim = {columns, rows, layers};
    for (unsigned block = 0; block < columns * rows * layers; ++block) {
        blockIdx = {block % columns, block / columns % rows, block / columns / rows};
        bytes.assign(shared_bytes / 16 + 1, uint4{0x7e007e00, 0x7e007e00, 0x7e007e00, 0x7e007e00});
        dynamic_memory = bytes.data();
        for (unsigned n = 0; n < threads; ++n) {
            fibers[n].state = State::RUNS;
            fibers[n].turn = 0;
            copies[n].clear();
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
