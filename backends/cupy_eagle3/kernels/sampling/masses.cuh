// What filters know of a column: its mass, which is its share of the row's probability before it is scaled to sum to 1, and
// the bucket of columns of about the same logit that it lies in.
//
// A mass is exp((logit - largest) / TEMPERATURE) in units of 2^-45, a whole number: sums of masses are exact, whatever their
// order, and those of 2^18 columns fit. What lies 32 nats and more below the largest has no mass; all such columns of a row
// together have less than 1e-8 of it.
#pragma once
#include "rank.cuh"

#define BUCKETS 2048
#define BUCKETS_PER_NAT 64

typedef unsigned long long Mass;

__device__ __forceinline__ Mass mass_of(float logit, float largest) {
    return (Mass)(exp(((double)logit - (double)largest) / TEMPERATURE) * 0x1p45 + 0.5);
}

// Falls as the logit rises: bucket 0 has the largest. In float32, where a difference and a product keep the order.
__device__ __forceinline__ int bucket_of(float logit, float largest) {
    const double SCALE = BUCKETS_PER_NAT / (double)TEMPERATURE;
    return (int)fminf((largest - logit) * (SCALE < 1e30 ? (float)SCALE : 1e30f), (float)(BUCKETS - 1));
}
