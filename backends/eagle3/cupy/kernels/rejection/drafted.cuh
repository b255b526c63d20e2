// A draft token, the row of the target that judges it, and the row of the draft that it was drawn from.
//
// Layouts: logits [active slot][DRAFTS + 1][VOCAB]; draft_logits [draft token][SLOTS][DRAFT_VOCAB], of which the first rows are
// those of the active slots; drafts [slot][MAX_ROWS]; draft_columns [VOCAB]: the draft's column of each token, -1 for none.
#pragma once
#include "race.cuh"

// A column's probability, but for what is the same for all columns of its row. 1 where the logit is the `reference`.
__device__ __forceinline__ double weight_of(float logit, float reference) {
    return exp(((double)logit - (double)reference) / TEMPERATURE);
}

// Weights of the target's row refer to its largest logit. Those of the draft's row refer to the logit of the token that was
// drawn: what is drawn with 52 random bits is never so unlikely that another column's weight, below e^41, would overflow.
struct Drafted {
    int token;
    const float* judge;
    float largest;
    Rank cut;
    const float* source;
    float drawn;

    template <typename Arguments>
    __device__ __forceinline__ Drafted(const Arguments& args, int a, int slot, int t)
        : token(args.drafts[slot * MAX_ROWS + t]),
          judge(args.logits + (long long)(a * (DRAFTS + 1) + t) * VOCAB),
          largest(value_of(args.choices[a * (DRAFTS + 1) + t])),
          cut(FILTERED ? args.cuts[a * (DRAFTS + 1) + t] : 0),
          source(args.draft_logits + (long long)(t * SLOTS + a) * DRAFT_VOCAB),
          // A token that the draft has not, as where a launch is timed alone, must not be read from elsewhere.
          drawn(source[max(args.draft_columns[token], 0)]) {}

    // Whether the target's filters leave a column.
    __device__ __forceinline__ bool leaves(float logit, int column) const { return !FILTERED || rank_of(logit, column) >= cut; }
};
