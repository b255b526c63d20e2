// The tensor-core product of sm_80 and later.
//
// Fragments of m16n8k16, with g = lane / 4 and c = lane % 4: of A a lane holds rows g and g + 8 at k 2c, 2c + 1, 2c + 8 and
// 2c + 9; of B column g at the same k; of C rows g and g + 8 at columns 2c and 2c + 1. A column of C depends on that column of
// B alone, so what shares a tile with a token cannot change the token's bits.
//
// Which k a fragment calls "2c" is free as long as A and B agree. Here a lane always takes the eight k that are contiguous in
// memory at 8c: one 16-byte load gives the operands of two products, without a shuffle.
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
