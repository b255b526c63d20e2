// What filters know of a column: its mass, which is its share of the row's probability before it is scaled to sum to 1, and
// the bucket of columns of about the same logit that it lies in.
//
// A mass is exp((logit - largest) / TEMPERATURE) in units of 2^-45, a whole number: sums of masses are exact, whatever their
// order, and those of 2^18 columns fit. What lies 32 nats and more below the largest has no mass; all such columns of a row
// together have less than 1e-8 of it.
#pragma once
#include "rank.cuh"

#define BUCKETS 2048
#define LAST_BUCKET (BUCKETS - 1)
#define BUCKETS_PER_UNIT 64

const bool TAKES_K = 0 < TOP_K && TOP_K < VOCAB;
const bool TAKES_P = TOP_P < 1;

typedef unsigned long long Mass;

__device__ __forceinline__ Mass mass_of(float logit, float largest) {
    return (Mass)(exp(((double)logit - (double)largest) / TEMPERATURE) * 0x1p45 + 0.5);
}

// Falls as the logit rises: bucket 0 has the largest. In float32, where a difference and a product keep the order. The unit is
// a nat, so that what is in the last bucket has no mass; for top-k, to which the temperature is nothing, it is one of a logit.
__device__ __forceinline__ int bucket_of(float logit, float largest) {
    const double SCALE = TAKES_K ? BUCKETS_PER_UNIT : BUCKETS_PER_UNIT / (double)TEMPERATURE;
    return (int)fminf((largest - logit) * (SCALE < 1e30 ? (float)SCALE : 1e30f), (float)LAST_BUCKET);
}

// Where weigh_rows has found that filters end: the bucket, the mass of the columns before it, and that of all columns. For
// top-k the bucket alone.
struct Edge {
    int bucket;
    Mass before, all;

    // Whether a filter may have to look at a column of that bucket: top-p after top-k at all that top-k may leave.
    __device__ __forceinline__ bool needs(int of_column) const { return TAKES_K ? of_column <= bucket : of_column == bucket; }
};
