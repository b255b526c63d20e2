// Brings what a kernel will read into the L2 cache while the kernel still waits for the one before it.
#pragma once

__device__ __forceinline__ void prefetch_line(const void* line) { asm volatile("prefetch.global.L2 [%0];" ::"l"(line)); }

// `bytes` bytes at `from`; to be called by all Threads threads of a block.
template <int Threads>
__device__ __forceinline__ void prefetch(const void* from, int bytes) {
    const int LINE = 128;
    for (int at = threadIdx.x * LINE; at < bytes; at += Threads * LINE) prefetch_line(static_cast<const char*>(from) + at);
}
