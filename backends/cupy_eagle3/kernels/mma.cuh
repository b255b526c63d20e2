// The tensor-core product of sm_80 and later.
//
// Fragments of m16n8k16 (g = lane / 4, c = lane % 4): A holds rows g and g + 8 at columns 2c, 2c + 1 and 2c + 8, 2c + 9;
// B holds column g at the same k; C holds rows g, g + 8 at columns 2c, 2c + 1. A column of C depends on that column of B
// alone: what shares the tile with a token cannot change its bits.
//
// Which k a fragment calls "2c" is free as long as A and B agree. Throughout, lane c takes the eight k that are contiguous
// in memory at 8c: one 16-byte load gives the operands of two products, with no shuffle and no shared memory.
#pragma once

// A thread's place in its block and in the fragments, `g` and `c` as above.
struct Thread {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
};

__device__ __forceinline__ void mma_bf16(float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0,
                                         unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Two products over 32 k: `low` and `high` are rows g and g + 8 of A, `b` is column g of B, eight k each.
__device__ __forceinline__ void mma_k32(float (&c)[4], const uint4& low, const uint4& high, const uint4& b) {
    mma_bf16(c, low.x, high.x, low.y, high.y, b.x, b.y);
    mma_bf16(c, low.z, high.z, low.w, high.w, b.z, b.w);
}
