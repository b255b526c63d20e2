// What is the same in every kernel's library: fibers and their scheduler, copies, and launches. See host.hpp.
#include <ucontext.h>

#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

// clang-format off: last, because it gives words such as __shared__ another meaning
#include "host.hpp"
// clang-format on

Jump scheduler;
Fiber* current;
Fiber fibers[1024];
Place threadIdx, blockIdx, gridDim;
uint4* dynamic_memory;

// ── copies ───────────────────────────────────────────────────────────────────────────────────────────────────────────────

struct Copy {
    void* to;
    const void* from;
};

struct Copies {
    std::vector<std::vector<Copy>> groups;  // that have not arrived, the oldest first
    std::vector<Copy> open;
};

static Copies copies[sizeof fibers / sizeof *fibers];
static Copies& own_copies() { return copies[current - fibers]; }

void begun(unsigned to, const void* from) { own_copies().open.push_back({reinterpret_cast<char*>(dynamic_memory) + to, from}); }
void grouped() {
    Copies& own = own_copies();
    own.groups.push_back(own.open);
    own.open.clear();
}
void arrived(unsigned pending) {
    std::vector<std::vector<Copy>>& groups = own_copies().groups;
    while (groups.size() > pending) {
        for (const Copy& copy : groups.front()) std::memcpy(copy.to, copy.from, 16);
        groups.erase(groups.begin());
    }
}

// ── other GPUs ───────────────────────────────────────────────────────────────────────────────────────────────────────────

long long nanoseconds() {
    // Whoever asks waits for another one, which may have to share a CPU with it.
    std::this_thread::sleep_for(std::chrono::microseconds(20));
    return std::chrono::steady_clock::now().time_since_epoch().count();
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
            copies[n].groups.clear();
            copies[n].open.clear();
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
