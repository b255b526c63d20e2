// Matrices of experts as bfloat16, out of the tiles that packing.py has made of them: what a library multiplies with.
//
// blockIdx.x is a tile of 16 rows, blockIdx.y an expert; a warp takes every WARPS-th slab of the tile. A lane has eight
// neighbouring numbers of rows g and g + 8 of the tile, in both blocks of 32 of the slab (expert_ring.cuh), and writes each
// eight as one piece of 16 bytes. A number is exact in bfloat16: it has two significant bits, and its scale is a power of two.
//
// Layouts: out [expert][N_OUT][K_IN]; tiles [expert][N_OUT / 16][TILE_BYTES].
#include "bf16.cuh"
#include "dependent.cuh"
#include "fp16.cuh"

const int WARPS = THREADS / 32, SLABS = (K_IN + 63) / 64, TILES = N_OUT / 16;
const int NUMBERS = 512, SCALES = 32, LINE = 128;  // bytes: of a slab, and of a line of the L2 cache
const int TILE_BYTES = (SLABS * (NUMBERS + SCALES) + LINE - 1) / LINE * LINE;

static_assert(K_IN % 32 == 0 && N_OUT % 16 == 0, "K_IN must be a multiple of 32, N_OUT of 16");

struct PrefillDecodeArguments {  // launched on [TILES, COUNT] where PAIRED_ROWS == PAIRED
    bf16* out;                   // [COUNT, N_OUT, K_IN]
    const unsigned char* tiles;  // [COUNT, N_OUT / 16, TILE_BYTES]: of the first expert that is wanted
    const int* sizes;            // [COUNT]: rows of each expert; one without rows is left out
};

// a · b of two bfloat16 each, which are exact here, subnormal ones as well. Added is −0, which leaves the sign of a zero.
__device__ __forceinline__ unsigned times(unsigned a, unsigned b) {
    unsigned product;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(product) : "r"(a), "r"(b), "r"(0x80008000u));
    return product;
}

// 2^(byte − 14 − 127), twice: packing.py has added 14. The smallest is subnormal.
__device__ __forceinline__ unsigned scale(unsigned byte) {
    const unsigned exponent = byte - 14, power = exponent ? exponent << 7 : 0x0040u;
    return power << 16 | power;
}

// Two numbers whose signs stand at bit 15 of their halves and whose magnitudes at 11 … 9. At 8 … 6 these are those of bfloat16
// numbers that are smaller by 2^126; a subnormal one stands for a half.
__device__ __forceinline__ unsigned scaled(unsigned pair, unsigned factor) {
    const unsigned TO_PLACE = (126u + 127u) << 7;
    return times(times((pair & 0x80008000u) | (pair >> 3 & 0x01c001c0u), TO_PLACE << 16 | TO_PLACE), factor);
}

__device__ __forceinline__ uint4 decoded(unsigned word, unsigned factor) {
    const Eight eight = expanded(word);
    return make_uint4(scaled(eight.pair[0], factor), scaled(eight.pair[1], factor), scaled(eight.pair[2], factor),
                      scaled(eight.pair[3], factor));
}

extern "C" __global__ __launch_bounds__(THREADS) void prefill_decode(const PrefillDecodeArguments args) {
    await_previous();
    const int tile = blockIdx.x, expert = blockIdx.y;
    if (args.sizes[expert] == 0) return;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
    const unsigned char* from = args.tiles + ((long long)expert * TILES + tile) * TILE_BYTES;
    bf16* out = args.out + ((long long)expert * N_OUT + tile * 16) * K_IN;
    bf16* rows[2] = {out + (PAIRED ? 2 * g : g) * K_IN, out + (PAIRED ? 2 * g + 1 : g + 8) * K_IN};
#pragma unroll 2
    for (int slab = warp; slab < SLABS; slab += WARPS) {
        const uint4 numbers = *reinterpret_cast<const uint4*>(from + slab * NUMBERS + lane * 16);
        const unsigned scales = *reinterpret_cast<const unsigned*>(from + SLABS * NUMBERS + slab * SCALES + g * 4);
        const unsigned words[4] = {numbers.x, numbers.y, numbers.z, numbers.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int column = slab * 64 + i / 2 * 32 + c * 8;
            if (K_IN % 64 != 0 && column >= K_IN) continue;
            *reinterpret_cast<uint4*>(rows[i % 2] + column) = decoded(words[i], scale(scales >> 8 * i & 0xffu));
        }
    }
}
