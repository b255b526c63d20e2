// The experts of every row of a prompt: the places of its PER_TOKEN largest logits, the lower place first among equals, and the
// softmax over these.
//
// A thread has a row. Layouts: logits [row][EXPERTS]; bias [EXPERTS]; chosen, weights [row][PER_TOKEN].
#include "bf16.cuh"
#include "dependent.cuh"

static_assert(PER_TOKEN <= EXPERTS, "a row cannot have more experts than there are");

struct PrefillRouteArguments {
    int* chosen;
    float* weights;
    const float* logits;
    const bf16* bias;
    int rows;
};

extern "C" __global__ __launch_bounds__(THREADS) void prefill_route(const PrefillRouteArguments args) {
    await_previous();
    const long long row = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (row >= args.rows) return;
    // The largest so far, in order. Nothing stands for a place that is still free: every logit goes before it, even NaN.
    float top[PER_TOKEN];
    int place[PER_TOKEN];
#pragma unroll
    for (int j = 0; j < PER_TOKEN; ++j) top[j] = 0, place[j] = -1;
    for (int expert = 0; expert < EXPERTS; ++expert) {
        float value = args.logits[row * EXPERTS + expert] + to_float(args.bias[expert]);
        int at = expert;
#pragma unroll
        for (int j = 0; j < PER_TOKEN; ++j) {
            // What has been pushed out of its place goes on to the next one, before any that is equal there.
            const bool before = place[j] < 0 || (at >= 0 && (value > top[j] || (value == top[j] && at < place[j])));
            const float other = top[j];
            const int its = place[j];
            if (before) top[j] = value, place[j] = at, value = other, at = its;
        }
    }
    float sum = 0, share[PER_TOKEN];
#pragma unroll
    for (int j = 0; j < PER_TOKEN; ++j) {
        share[j] = __expf(top[j] - top[0]);
        sum += share[j];
    }
#pragma unroll
    for (int j = 0; j < PER_TOKEN; ++j) {
        args.chosen[row * PER_TOKEN + j] = place[j];
        args.weights[row * PER_TOKEN + j] = share[j] / sum;
    }
}
