// Which experts the rows of a step go to, and which rows an expert has: made by every block for itself, in shared memory, from
// the router's logits. That takes less time than another kernel would, and no block waits for another.
//
// An expert's pairs are split into row groups of at most eight, as many as one product of the tensor core takes. Of a step's
// rows any number may go to one expert, but mostly no more than eight do: so a product is made for one row group at a time.
//
// A pair is a row and one of its places: row · PER_TOKEN + place. A row's experts are those of its largest logits, the largest
// first, of equal ones the lowest expert; their weights are the softmax over these. NaN and infinity beat every number, and
// make the weights NaN.
#pragma once
#include "argmax.cuh"
#include "block.cuh"
#include "mma.cuh"

const int ROW_GROUP = 8;  // most pairs of a row group
const int PAIRS = ROWS * PER_TOKEN;
const int ROW_GROUPS = (EXPERTS < PAIRS ? EXPERTS : PAIRS) + PAIRS / ROW_GROUP;

// MANY_ROWS: blocks find, share out, count and add up their work in ways that are faster where an expert may have several
// row groups, but slower with up to eight rows (timed on an H200). FEW_PAIRS: one warp finds the groups. On sm_120 the former
// would take more shared memory, of which there is less; the latter would cost the second product a spill.
#if __CUDA_ARCH__ >= 1200
const bool MANY_ROWS = false, FEW_PAIRS = false;
#else
const bool MANY_ROWS = ROWS > ROW_GROUP, FEW_PAIRS = PAIRS <= 32 && !MANY_ROWS;
#endif
const int WORDS = MANY_ROWS ? (ROWS + 31) / 32 : 1;  // of a set of rows

// `count` pairs of one expert: those in `members` from `start` on.
struct RowGroup {
    int expert, start, count;
};

struct Routing {
    int expert_of[PAIRS];              // of each pair
    float weight_of[PAIRS];            // of each pair
    unsigned rows_of[EXPERTS][WORDS];  // how many; of MANY_ROWS which: row r is bit r % 32 of word r / 32
    int start[EXPERTS];                // where its pairs begin in `members`
    int members[PAIRS];                // pairs, expert by expert, ascending
    RowGroup row_groups[ROW_GROUPS];   // of all pairs, in that order
    int row_group_count;
    int touched_count;  // experts that have pairs
};
__shared__ Routing routing;

__device__ __forceinline__ float logit_from(unsigned ordered) {
    return __uint_as_float(ordered & 0x80000000u ? ordered ^ 0x80000000u : ~ordered);
}

const int LANE_EXPERTS = (EXPERTS + 31) / 32;  // of a lane

// A lane's logits of a row: those of the experts lane, lane + 32, …
__device__ __forceinline__ void load_logits(float (&into)[LANE_EXPERTS], const float* logits, int row, const Thread& me) {
#pragma unroll
    for (int n = 0; n < LANE_EXPERTS; ++n) {
        const int expert = me.lane + 32 * n;
        into[n] = expert < EXPERTS ? __ldcg(logits + row * EXPERTS + expert) : 0;
    }
}

// One warp per row. What is not an expert, or is chosen already, has the key 0, below that of every logit. Of MANY_ROWS, the
// logits of a warp's next one are on their way while this one's are compared.
__device__ __forceinline__ void choose_experts(const float* logits, int rows, const Thread& me) {
    float ahead[LANE_EXPERTS];
    if (MANY_ROWS && me.warp < rows) load_logits(ahead, logits, me.warp, me);
    for (int row = me.warp; row < rows; row += WARPS) {
        unsigned key[LANE_EXPERTS];
#pragma unroll
        for (int n = 0; n < LANE_EXPERTS; ++n) {
            const int expert = me.lane + 32 * n;
            key[n] = expert < EXPERTS ? logit_of(choice(MANY_ROWS ? ahead[n] : __ldcg(logits + row * EXPERTS + expert), 0)) : 0;
        }
        if (MANY_ROWS && row + WARPS < rows) load_logits(ahead, logits, row + WARPS, me);
        float first = 0, sum = 0, power = 0;
        int mine = 0;
#pragma unroll
        for (int place = 0; place < PER_TOKEN; ++place) {
            unsigned best = 0, expert = 0xffffffffu;
#pragma unroll
            for (int n = 0; n < LANE_EXPERTS; ++n) best = max(best, key[n]);
            best = __reduce_max_sync(FULL_WARP, best);
#pragma unroll
            for (int n = LANE_EXPERTS - 1; n >= 0; --n)
                if (key[n] == best) expert = me.lane + 32 * n;
            expert = __reduce_min_sync(FULL_WARP, expert);
#pragma unroll
            for (int n = 0; n < LANE_EXPERTS; ++n)
                if (me.lane + 32 * n == expert) key[n] = 0;
            const float logit = logit_from(best);
            if (place == 0) first = logit;
            const float its = __expf(logit - first);
            sum += its;
            if (me.lane == place) power = its, mine = (int)expert;
        }
        if (me.lane < PER_TOKEN) {
            routing.expert_of[row * PER_TOKEN + me.lane] = mine;
            routing.weight_of[row * PER_TOKEN + me.lane] = power / sum;
            if (MANY_ROWS) atomicOr(&routing.rows_of[mine][row / 32], 1u << row % 32);
        }
    }
}

// Of MANY_ROWS, how many of an expert's come before `row`. A row chooses an expert once at most.
__device__ __forceinline__ int rows_before(int expert, int row) {
    int count = 0;
#pragma unroll
    for (int word = 0; word < WORDS; ++word) {
        const int bits = row - 32 * word;
        const unsigned mask = bits >= 32 ? 0xffffffffu : bits > 0 ? (1u << bits) - 1 : 0;
        count += __popc(routing.rows_of[expert][word] & mask);
    }
    return count;
}

__device__ __forceinline__ int row_count(int expert) {
    return MANY_ROWS ? rows_before(expert, ROWS) : routing.rows_of[expert][0];
}

// A lane takes neighbouring experts. Pairs and row groups are counted in the two halves of one number.
__device__ __forceinline__ void place_groups(const Thread& me) {
    int sizes[LANE_EXPERTS], sum = 0, touched = 0;
#pragma unroll
    for (int n = 0; n < LANE_EXPERTS; ++n) {
        const int expert = me.lane * LANE_EXPERTS + n;
        sizes[n] = expert < EXPERTS ? row_count(expert) : 0;
        sum += sizes[n] | (sizes[n] + ROW_GROUP - 1) / ROW_GROUP << 16;
        touched += __popc(__ballot_sync(FULL_WARP, sizes[n] > 0));
    }
    int until = sum;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const int before = __shfl_up_sync(FULL_WARP, until, step);
        if (me.lane >= step) until += before;
    }
    if (me.lane == 31) {
        routing.row_group_count = until >> 16;
        routing.touched_count = touched;
    }
    int start = (until - sum) & 0xffff, row_group = (until - sum) >> 16;
#pragma unroll
    for (int n = 0; n < LANE_EXPERTS; ++n) {
        const int expert = me.lane * LANE_EXPERTS + n;
        if (expert < EXPERTS) routing.start[expert] = start;
#pragma unroll 1
        for (int left = sizes[n]; left > 0; left -= ROW_GROUP) {
            const int count = min(left, ROW_GROUP);
            routing.row_groups[row_group++] = {expert, start, count};
            start += count;
        }
    }
}

__device__ __forceinline__ void count_rows(int pairs) {
    for (int expert = threadIdx.x; expert < EXPERTS; expert += WARPS * 32) {
        int count = 0;
        for (int pair = 0; pair < pairs; ++pair) count += routing.expert_of[pair] == expert;
        routing.rows_of[expert][0] = count;
    }
}

// Once it is known where the pairs of each expert begin: a thread per expert.
__device__ __forceinline__ void place_members(int pairs) {
    for (int expert = threadIdx.x; expert < EXPERTS; expert += WARPS * 32) {
        if (row_count(expert) == 0) continue;
        int at = routing.start[expert];
        for (int pair = 0; pair < pairs; ++pair)
            if (routing.expert_of[pair] == expert) routing.members[at++] = pair;
    }
}

// The same of MANY_ROWS: a thread per pair.
__device__ __forceinline__ void place_members_by_bits(int pairs) {
    for (int pair = threadIdx.x; pair < pairs; pair += WARPS * 32) {
        const int expert = routing.expert_of[pair];
        routing.members[routing.start[expert] + rows_before(expert, pair / PER_TOKEN)] = pair;
    }
}

// The groups of no more pairs than a warp has lanes, and of no more rows than a row group has, by one warp, whose lane p has
// pair p.
__device__ __forceinline__ void place_few(int pairs, const Thread& me) {
    const bool exists = me.lane < pairs;
    const int expert = exists ? routing.expert_of[me.lane] : EXPERTS + me.lane;
    const unsigned same = __match_any_sync(FULL_WARP, expert), before = same & ((1u << me.lane) - 1);
    const unsigned firsts = __ballot_sync(FULL_WARP, exists && before == 0);
    int start = 0, place = 0;
#pragma unroll 4
    for (int pair = 0; pair < pairs; ++pair) {
        const bool below = routing.expert_of[pair] < expert;
        start += below;
        place += below && firsts >> pair & 1;
    }
    if (exists) routing.members[start + __popc(before)] = me.lane;
    if (exists && before == 0) routing.row_groups[place] = {expert, start, __popc(same)};
    if (me.lane == 0) routing.row_group_count = routing.touched_count = __popc(firsts);
}

// Fills `routing` for the first `rows` rows of `logits` [row][EXPERTS]; by all threads of a block.
__device__ __forceinline__ void route_rows(const float* logits, int rows, const Thread& me) {
    if (MANY_ROWS) {
        for (int n = threadIdx.x; n < EXPERTS * WORDS; n += WARPS * 32) routing.rows_of[n / WORDS][n % WORDS] = 0;
        __syncthreads();
    }
    choose_experts(logits, rows, me);
    __syncthreads();
    const int pairs = rows * PER_TOKEN;
    if (FEW_PAIRS) {
        if (me.warp == 0) place_few(pairs, me);
        __syncthreads();
        return;
    }
    if (!MANY_ROWS) {
        count_rows(pairs);
        __syncthreads();
    }
    if (me.warp == 0) place_groups(me);
    __syncthreads();
    MANY_ROWS ? place_members_by_bits(pairs) : place_members(pairs);
    __syncthreads();
}
