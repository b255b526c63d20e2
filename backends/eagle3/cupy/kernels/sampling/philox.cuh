// Philox 4x32-10: four random words from a counter and a key, without state. Salmon, Moraes, Dror and Shaw, "Parallel random
// numbers: as easy as 1, 2, 3" (SC 2011). The same numbers as specgate/sampling/philox.py.
#pragma once

__device__ __forceinline__ uint4 philox(uint4 counter, uint2 key) {
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        const unsigned long long first = 0xD2511F53ull * counter.x, second = 0xCD9E8D57ull * counter.z;
        counter = make_uint4((unsigned)(second >> 32) ^ counter.y ^ key.x, (unsigned)second,
                             (unsigned)(first >> 32) ^ counter.w ^ key.y, (unsigned)first);
        key.x += 0x9E3779B9u;
        key.y += 0xBB67AE85u;
    }
    return counter;
}
