// What is the same in every kernel's library: fibers and their scheduler, copies, and launches. See host.hpp.
extern "C" {
__attribute__((visibility("hidden"))) void* __dso_handle = &__dso_handle;  // what a linker's own start files would bring
}

#include <ucontext.h>

#include <chrono>
#include <cstdlib>
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

struct Matrix {  // as host_map of host.py makes it
    const unsigned short* address;
    unsigned long long rows, columns, box_rows, box_columns;
};

struct Box {
    unsigned to;
    const Matrix* of;
    int row, column;
};

struct Barrier {
    unsigned at, arrivals, missing, ended;
    long long bytes;  // announced that have not arrived
    std::vector<Box> boxes;
};

static std::vector<Barrier> barriers;
static unsigned moves;  // of any barrier: without one, whoever polls waits for ever

static Barrier& barrier_at(unsigned at) {
    for (Barrier& barrier : barriers)
        if (barrier.at == at) return barrier;
    std::abort();
}
static void end_phase(Barrier& of) {
    ++moves;
    if (of.missing || of.bytes) return;
    ++of.ended;
    of.missing = of.arrivals;
}

void barrier_made(unsigned at, unsigned arrivals) { barriers.push_back({at, arrivals, arrivals, 0, 0, {}}); }
void arrived_at(unsigned barrier, unsigned announced) {
    Barrier& of = barrier_at(barrier);
    if (of.missing-- == 0) std::abort();
    of.bytes += announced;
    end_phase(of);
}
void box_begun(unsigned to, const void* map, int row, int column, unsigned barrier) {
    barrier_at(barrier).boxes.push_back({to, static_cast<const Matrix*>(map), row, column});
}
bool phase_has_ended(unsigned barrier, unsigned parity) {
    Barrier& of = barrier_at(barrier);
    std::vector<Box> boxes;
    boxes.swap(of.boxes);
    for (const Box& box : boxes) {
        const Matrix& matrix = *box.of;
        for (unsigned long long r = 0; r < matrix.box_rows; ++r)
            for (unsigned long long c = 0; c < matrix.box_columns; ++c) {
                const unsigned long long row = box.row + r, column = box.column + c;
                const bool exists = row < matrix.rows && column < matrix.columns;
                const unsigned at = box.to + r * 128 + ((c / 8 ^ r % 8) * 8 + c % 8) * 2;
                const unsigned short number = exists ? matrix.address[row * matrix.columns + column] : 0;
                std::memcpy(reinterpret_cast<char*>(dynamic_memory) + at, &number, 2);
            }
        of.bytes -= matrix.box_rows * matrix.box_columns * 2;
        end_phase(of);
    }
    if (of.ended % 2 != parity) return true;
    wait_as(State::POLLS);
    return false;
}

// ── products of a warpgroup ──────────────────────────────────────────────────────────────────────────────────────────────

struct Group {
    float* sums;
    int row_tiles;
    unsigned long long a, b;
    bool in_registers;  // A, in `own`
    unsigned own[4];
};

static std::vector<Group> groups[sizeof fibers / sizeof *fibers];

// An element of an operand by its descriptor: rows in eights of 1024 bytes, swizzled over 128 by their address.
static unsigned bits_in_box(unsigned long long of, int row, int k) {
    const unsigned eight = (of >> 32 & 0x3fff) << 4, from = (of & 0x3fff) << 4;
    if (of >> 62 != 1) std::abort();
    unsigned at = from + row / 8 * eight + row % 8 * 128 + 2 * k;
    at ^= (at >> 7 & 7) << 4;
    unsigned short number;
    std::memcpy(&number, reinterpret_cast<char*>(dynamic_memory) + at, 2);
    return number;
}
static float in_box(unsigned long long of, int row, int k) { return brain(bits_in_box(of, row, k)); }

void group_begun(float* sums, int row_tiles, unsigned long long a, unsigned long long b) {
    groups[current - fibers].push_back({sums, row_tiles, a, b, false, {}});
}
void group_begun(float* sums, int row_tiles, unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned long long b) {
    groups[current - fibers].push_back({sums, row_tiles, 0, b, true, {a0, a1, a2, a3}});
}
// Of float16, as four warps multiply each by itself.
static void multiply_registers(const Group& of, int g, int c) {
    const unsigned* a = of.own;
    for (int t = 0; t < of.row_tiles; ++t) {
        const auto pair = [&](int k) { return bits_in_box(of.b, 8 * t + g, k + 1) << 16 | bits_in_box(of.b, 8 * t + g, k); };
        float (&sums)[4] = *reinterpret_cast<float (*)[4]>(of.sums + 4 * t);
        multiplied_half(sums, a[0], a[1], a[2], a[3], pair(2 * c), pair(2 * c + 8), sums[0], sums[1], sums[2], sums[3]);
    }
}
void groups_multiplied() {
    const int warp = threadIdx.x / LANES % 4, g = threadIdx.x % LANES / 4, c = threadIdx.x % 4;
    for (const Group& of : groups[current - fibers]) {
        if (of.in_registers) multiply_registers(of, g, c);
        for (int n = 0; n < (of.in_registers ? 0 : 4 * of.row_tiles); ++n) {
            float sum = 0;
            for (int k = 0; k < 16; ++k)
                sum += in_box(of.a, 16 * warp + g + n % 4 / 2 * 8, k) * in_box(of.b, n / 4 * 8 + 2 * c + n % 2, k);
            of.sums[n] += sum;
        }
    }
    groups[current - fibers].clear();
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

// Whether some fibers poll; they ask again. Ends the process where nothing has moved since they asked.
static bool asked_again(unsigned threads, bool moved) {
    bool some = false;
    for (unsigned n = 0; n < threads; ++n)
        if (fibers[n].state == State::POLLS) fibers[n].state = State::RUNS, some = true;
    if (some && !moved) std::abort();
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
        barriers.clear();
        unsigned before;
        do {
            before = moves;
            for (unsigned n = 0; n < threads; n += LANES) {
                const unsigned end = min(n + LANES, threads);
                do run_fibers(n, end);
                while (go_on(n, end, State::WAITS_FOR_WARP));
            }
        } while (go_on(0, threads, State::WAITS_FOR_BLOCK) || asked_again(threads, moves != before));
    }
}
