// The tree of a slot: the NODES likeliest candidates of its pool, by the probability of their paths, exact ties to the earlier
// one; then its tokens, parents and masks. A child is never likelier than its parent and comes later in the pool, so that what
// is chosen is a tree, and its nodes are numbered in the order of the pool, level by level.
//
// One block per active slot. It joins the candidates of the last level (joined_rows.cuh), of the SOURCES rows that the draft
// ran on, into the pool; those of other levels are there (tree_grow.cu). The least probability that is chosen is found bit by
// bit, two bits at a time, by counting how many candidates have more.
//
// Layouts: candidates [row][PARTS][TOP] and sums [row][PARTS], as tree_top.cu leaves them; pool [slot][POOL], of which BEGIN
// candidates are of levels before the last; entries and scores [slot][FOREST], see tree_grow.cu; drafts [slot][MAX_ROWS]; masks
// and parents [slot][STRIDE], as tree_settle.cu reads them.
#include "dependent.cuh"
#include "joined_rows.cuh"
#include "prefetch.cuh"
#include "slots.cuh"

static_assert(NODES >= 1 && NODES < 64 && NODES < STRIDE && NODES <= BEGIN + SOURCES * TOP, "a mask has 64 bits");

const int USED = BEGIN + SOURCES * TOP;                // candidates of this tree; the pool may be that of a deeper one
const int EACH = (USED + THREADS - 1) / THREADS;       // candidates of a thread
const int LAST = LEVELS > 1 ? (LEVELS - 2) * TOP : 0;  // number of the first row that the draft ran on for the last level

struct TreeChooseArguments {                        // launched on [S] for SOURCES rows of a slot
    int *drafts, *parents;                          // [S, MAX_ROWS]
    long long* masks;                               // [S, MAX_ROWS]
    uint2* pool;                                    // [S, POOL, 2]
    int* fault;                                     // [1]
    const Choice* candidates;                       // [R * PARTS * TOP]
    const float2* sums;                             // [R * PARTS, 2]
    const int* entries;                             // [S, FOREST]
    const float* scores;                            // [S, FOREST]
    const int *target_ids, *active, *active_count;  // [DRAFT_VOCAB], [S], [1]
};

// The row of the forest that a candidate stands behind; -1 where that is the root.
__device__ __forceinline__ int row_behind(int entry) { return entry < TOP ? -1 : (entry - TOP) / TOP; }

// The largest score that at least NODES of the candidates reach.
__device__ __forceinline__ unsigned least_chosen(const uint2 (&mine)[EACH]) {
    const int ROUNDS = 16;
    __shared__ int reached[ROUNDS][3];
    for (int n = threadIdx.x; n < ROUNDS * 3; n += THREADS) reached[n / 3][n % 3] = 0;
    __syncthreads();
    unsigned least = 0;
#pragma unroll 1
    for (int round = 0; round < ROUNDS; ++round) {
        const unsigned step = 1u << (30 - 2 * round);
#pragma unroll
        for (int i = 0; i < 3; ++i) {
            int count = 0;
#pragma unroll
            for (int n = 0; n < EACH; ++n) count += __popc(__ballot_sync(FULL_WARP, mine[n].x >= least + (i + 1) * step));
            if (threadIdx.x % 32 == 0 && count) atomicAdd(&reached[round][i], count);
        }
        __syncthreads();
        unsigned steps = 0;
#pragma unroll
        for (int i = 0; i < 3; ++i) steps += reached[round][i] >= NODES;
        least += steps * step;
    }
    return least;
}

extern "C" __global__ __launch_bounds__(THREADS, 1) void tree_choose(const TreeChooseArguments args) {
    __shared__ float paths[SOURCES];
    __shared__ int counts[EACH * WARPS];  // of a warp's candidates: those above the least, and 2^16 · those that equal it
    __shared__ unsigned char numbers[USED];
    __shared__ int parents[NODES + 1];
    const int a = blockIdx.x, t = threadIdx.x, lane = t % 32, warp = t / 32;
    prefetch<THREADS>(args.target_ids, DRAFT_VOCAB * sizeof(int));
    const int count = *args.active_count, slot = args.active[a];
    if (t < SOURCES) paths[t] = LEVELS > 1 ? args.scores[slot * FOREST + LAST + t] : 0;
    await_previous();
    let_next_start();
    if (a >= count) return;
    __syncthreads();
    uint2* pool = args.pool + slot * POOL;
    join_rows(
        args.candidates, args.sums, a * SOURCES, SOURCES, args.fault, [&](int row) { return paths[row]; },
        [&](int row, int rank, const Candidate& of) { pool[BEGIN + row * TOP + rank] = make_uint2(of.score, of.column); });
    __syncthreads();
    uint2 mine[EACH];  // every THREADS-th candidate; 0, which none has, behind the last
#pragma unroll
    for (int n = 0; n < EACH; ++n) mine[n] = n * THREADS + t < USED ? pool[n * THREADS + t] : make_uint2(0, 0);
    const unsigned least = least_chosen(mine);
    const unsigned earlier = (1u << lane) - 1;
    int place[EACH];  // how many of the warp's come before, counted as in `counts`
#pragma unroll
    for (int n = 0; n < EACH; ++n) {
        const unsigned above = __ballot_sync(FULL_WARP, mine[n].x > least),
                       equal = __ballot_sync(FULL_WARP, mine[n].x == least);
        place[n] = __popc(above & earlier) | __popc(equal & earlier) << 16;
        if (lane == 0) counts[n * WARPS + warp] = __popc(above) | __popc(equal) << 16;
    }
    __syncthreads();
    int all = 0;
#pragma unroll 8
    for (int n = 0; n < EACH * WARPS; ++n) {
        const int of_warp = counts[n];
#pragma unroll
        for (int i = 0; i < EACH; ++i)
            if (n < i * WARPS + warp) place[i] += of_warp;
        all += of_warp;
    }
    const int equals = NODES - (all & 0xffff);  // so many of those that equal the least are chosen, the first ones
    int number[EACH];                           // of the node; 0 of what is not chosen
#pragma unroll
    for (int n = 0; n < EACH; ++n) {
        const int above = place[n] & 0xffff, equal = place[n] >> 16, entry = n * THREADS + t;
        const bool chosen = entry < USED && (mine[n].x > least || (mine[n].x == least && equal < equals));
        number[n] = chosen ? 1 + above + min(equal, equals) : 0;
        if (entry < USED) numbers[entry] = (unsigned char)number[n];
    }
    if (t == 0) parents[0] = 0;
    __syncthreads();
#pragma unroll
    for (int n = 0; n < EACH; ++n) {
        if (number[n] == 0) continue;
        const int row = row_behind(n * THREADS + t);
        parents[number[n]] = row < 0 ? 0 : numbers[args.entries[slot * FOREST + row]];
        args.drafts[slot * MAX_ROWS + number[n] - 1] = args.target_ids[min(mine[n].y, DRAFT_VOCAB - 1u)];
    }
    __syncthreads();
    if (t > NODES) return;
    unsigned long long mask = 1ull << t;
    for (int level = 0, at = t; level < LEVELS && at; ++level) {
        at = parents[at];
        mask |= 1ull << at;
    }
    args.masks[slot * STRIDE + t] = (long long)mask;
    args.parents[slot * STRIDE + t] = parents[t];
}
