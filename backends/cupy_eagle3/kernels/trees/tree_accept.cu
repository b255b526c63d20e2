// The longest path of a tree on which every draft token is the target's own choice behind its parent: accepted[slot] draft
// tokens, whose nodes are path[slot][1 …]. Of equally long ones, that to the lowest node.
//
// One block per active slot, one thread per node. target_tokens[slot][d] = what the target says behind the path's node at depth
// d, for `commit`. And a check of the masks that attention has used: a node looks at what its parent looks at and at itself,
// the root at itself alone, and parents come first. By induction that leaves one possible mask per node.
//
// Layouts: choices [active slot][ROWS], as the LM head leaves them, cleared again; drafts and target_tokens [slot][MAX_ROWS];
// masks and parents [slot][STRIDE]; path [slot][LEVELS + 1], node 0 first, meaningless behind accepted[slot].
#include "argmax.cuh"
#include "dependent.cuh"
#include "slots.cuh"

static_assert(ROWS <= 64 && ROWS <= STRIDE && THREADS >= ROWS && THREADS % 32 == 0,
              "a mask has 64 bits, and a thread one node");

struct TreeAcceptArguments {
    int* accepted;
    int* path;
    int* target_tokens;
    Choice* choices;
    int* fault;
    const long long* masks;
    const int* parents;
    const int* drafts;
    const int* active;
    const int* active_count;
    long long* stamps;
    const int* step;
};

extern "C" __global__ __launch_bounds__(THREADS) void tree_accept(const TreeAcceptArguments args) {
    __shared__ int tokens[ROWS];
    __shared__ unsigned long long masks[ROWS], disagreeing;
    __shared__ int best;  // depth · 64 + 63 - node
    // The kernel before this one, the LM head, writes nothing but choices: all else is requested before it has ended.
    const int a = blockIdx.x, t = threadIdx.x, count = *args.active_count, slot = args.active[a], now = *args.step;
    const bool exists = t < ROWS;
    const unsigned long long mask = exists ? (unsigned long long)args.masks[slot * STRIDE + t] : 0;
    const int parent = exists ? args.parents[slot * STRIDE + t] : 0;
    const int drafted = exists && t > 0 ? args.drafts[slot * MAX_ROWS + t - 1] : 0;
    await_previous();
    let_next_start();
    if (a >= count) return;
    if (a == 0 && t == 0) args.stamps[now * STAMPS + VERIFIED] = device_nanoseconds();
    if (t == 0) disagreeing = 0, best = 63;  // the root
    if (exists) {
        const Choice of_row = args.choices[a * ROWS + t];
        args.choices[a * ROWS + t] = 0;
        tokens[t] = index_of(of_row);
        masks[t] = mask;
        if (!is_finite(of_row)) atomicOr(args.fault, TARGET_NOT_FINITE);
    }
    __syncthreads();
    const bool ordered = t == 0 ? parent == 0 : parent >= 0 && parent < t;
    if (exists) {
        const unsigned long long expected = (t > 0 && ordered ? masks[parent] : 0) | 1ull << t;
        if (!ordered || mask != expected) atomicOr(args.fault, MASK_INTEGRITY);
        if (t > 0 && (!ordered || drafted != tokens[parent])) atomicOr(&disagreeing, 1ull << t);
    }
    __syncthreads();
    const int depth = __popcll((long long)mask) - 1;
    if (exists && !(mask & disagreeing) && depth <= LEVELS) atomicMax(&best, depth * 64 + 63 - t);
    __syncthreads();
    const int length = best / 64, last = 63 - best % 64;
    if (exists && masks[last] >> t & 1 && depth >= 0 && depth <= length) {
        args.path[slot * (LEVELS + 1) + depth] = t;
        args.target_tokens[slot * MAX_ROWS + depth] = tokens[t];
    }
    if (t == 0) args.accepted[slot] = length;
}
