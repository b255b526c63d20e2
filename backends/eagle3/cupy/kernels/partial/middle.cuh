// The middle of a text: the blocks of KEPT positions between the first SINK_BLOCKS and the window, of which some are retrieved.
#pragma once

static_assert(BLOCK % KEPT == 0, "a block that is kept must not cross a cache block");

const int KEPT_OF_BLOCK = BLOCK / KEPT;

// The block with which the window begins, of a text with `length` positions in the cache: it has WINDOW_BLOCKS blocks' worth of
// them, and up to KEPT - 1 more.
__device__ __forceinline__ int end_of_middle(int length) { return max(length / KEPT - WINDOW_BLOCKS, SINK_BLOCKS); }
