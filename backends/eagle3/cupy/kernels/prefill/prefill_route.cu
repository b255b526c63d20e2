// The experts of every row of a prompt: the places of its PER_TOKEN largest logits, the lower place first among equals, and the
// softmax over these. NaN and infinity beat every number, and make the weights NaN.
//
// A warp has a row. Layouts: logits [row][EXPERTS]; bias [EXPERTS]; chosen, weights [row][PER_TOKEN].
#include "argmax.cuh"
#include "bf16.cuh"
#include "block.cuh"
#include "dependent.cuh"

static_assert(PER_TOKEN <= EXPERTS && PER_TOKEN <= 32, "a row has no more experts than there are, and a lane one of them");

struct PrefillRouteArguments {  // launched on [(rows * 32 - 1) / THREADS + 1]
    int* chosen;                // [rows, PER_TOKEN]
    float* weights;             // [rows, PER_TOKEN]
    const float* logits;        // [rows, EXPERTS]
    const bf16* bias;           // [EXPERTS]
    int rows;
};

const int LANE_EXPERTS = (EXPERTS + 31) / 32;

__device__ __forceinline__ float logit_from(unsigned ordered) {
    return __uint_as_float(ordered & 0x80000000u ? ordered ^ 0x80000000u : ~ordered);
}

extern "C" __global__ __launch_bounds__(THREADS) void prefill_route(const PrefillRouteArguments args) {
    await_previous();
    const long long row = ((long long)blockIdx.x * THREADS + threadIdx.x) / 32;
    const int lane = threadIdx.x % 32;
    if (row >= args.rows) return;
    // Of this lane's experts; 0 where there is none, or where it is chosen already.
    Choice left[LANE_EXPERTS];
#pragma unroll
    for (int n = 0; n < LANE_EXPERTS; ++n) {
        const int expert = lane + 32 * n;
        left[n] = expert < EXPERTS ? choice(args.logits[row * EXPERTS + expert] + to_float(args.bias[expert]), expert) : 0;
    }
    float first = 0, sum = 0, share = 0;
    int mine = 0;
#pragma unroll
    for (int j = 0; j < PER_TOKEN; ++j) {
        Choice best = 0;
#pragma unroll
        for (int n = 0; n < LANE_EXPERTS; ++n) best = max(best, left[n]);
#pragma unroll
        for (int step = 16; step; step /= 2) best = max(best, __shfl_xor_sync(FULL_WARP, best, step));
#pragma unroll
        for (int n = 0; n < LANE_EXPERTS; ++n)
            if (left[n] == best) left[n] = 0;
        const float logit = logit_from(logit_of(best));
        if (j == 0) first = logit;
        const float its = __expf(logit - first);
        sum += its;
        if (lane == j) share = its, mine = index_of(best);
    }
    if (lane < PER_TOKEN) {
        args.chosen[row * PER_TOKEN + lane] = mine;
        args.weights[row * PER_TOKEN + lane] = share / sum;
    }
}
