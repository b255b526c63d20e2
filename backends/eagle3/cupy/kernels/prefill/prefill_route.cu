// The experts of every row of a prompt: the places of its PER_TOKEN largest logits, the lower place first among equals, and the
// softmax over these.
//
// A thread has a row. Layouts: logits [row][EXPERTS]; bias [EXPERTS]; chosen, weights [row][PER_TOKEN].
#include "bf16.cuh"
#include "dependent.cuh"

static_assert(PER_TOKEN <= EXPERTS, "a row cannot have more experts than there are");

struct PrefillRouteArguments {  // launched on [(rows - 1) / THREADS + 1]
    int* chosen;                // [rows, PER_TOKEN]
    float* weights;             // [rows, PER_TOKEN]
    const float* logits;        // [rows, EXPERTS]
    const bf16* bias;           // [EXPERTS]
    int rows;
};

const int TOGETHER = EXPERTS % 4 == 0 ? 4 : 1;

__device__ __forceinline__ void load(float (&one)[1], const float* from) { one[0] = *from; }

__device__ __forceinline__ void load(float (&four)[4], const float* from) {
    const float4 loaded = *reinterpret_cast<const float4*>(from);
    four[0] = loaded.x, four[1] = loaded.y, four[2] = loaded.z, four[3] = loaded.w;
}

// What is pushed out of its place goes on to the next one, where it comes before any that is equal.
__device__ __forceinline__ void insert(float (&top)[PER_TOKEN], int (&place)[PER_TOKEN], float value, int expert) {
#pragma unroll
    for (int j = 0; j < PER_TOKEN; ++j) {
        const bool before = place[j] < 0 || (expert >= 0 && (value > top[j] || (value == top[j] && expert < place[j])));
        const float other = top[j];
        const int its = place[j];
        if (before) top[j] = value, place[j] = expert, value = other, expert = its;
    }
}

extern "C" __global__ __launch_bounds__(THREADS) void prefill_route(const PrefillRouteArguments args) {
    await_previous();
    const long long row = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (row >= args.rows) return;
    // The largest so far, in order. Nothing stands for a place that is still free: every logit goes before it, even NaN.
    float top[PER_TOKEN];
    int place[PER_TOKEN];
#pragma unroll
    for (int j = 0; j < PER_TOKEN; ++j) top[j] = 0, place[j] = -1;
    // A row's logits lie apart from the next row's: four in one piece use more of what is fetched for them, and several such
    // pieces are waited for at once.
#pragma unroll 4
    for (int first = 0; first < EXPERTS; first += TOGETHER) {
        float some[TOGETHER];
        load(some, args.logits + row * EXPERTS + first);
#pragma unroll
        for (int i = 0; i < TOGETHER; ++i) insert(top, place, some[i] + to_float(args.bias[first + i]), first + i);
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
