// Of a row of logits, the maxima of eight neighbouring columns each, as bits that compare as logits do (argmax.cuh): a row's
// TOP largest logits lie in TOP of these parts. Words behind the last part are zero, below every logit.
#pragma once

// Words of a row of so many columns: whole loads of 16 bytes.
__host__ __device__ constexpr int maxima_of(int columns) { return (columns + 31) / 32 * 4; }
