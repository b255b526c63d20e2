// Keys and values in E4M3 with scales (fp8.cuh), as `attention.cu` takes them: half the bytes.
//
// Scales stay out of the tensor core. Those of keys multiply scores. Those of values multiply probabilities, which are powers:
// the scale's exponent is added to theirs. The largest product is 2^ROOM, so that the others keep their bits in float16,
// however small the values are. The sum of probabilities has no scale, so each lane divides its part again: its keys in a key
// tile share one.
#pragma once
#include "async_copy.cuh"
#include "block.cuh"
#include "fp8.cuh"
#include "kv_codes.cuh"
#include "kv_ring.cuh"
#include "rope.cuh"

// Request the scales of the lane's keys and values of the key tile at `key`, in cache block `block`.
__device__ __forceinline__ void copy_scales(const KVRing& ring, int stage, int block, int key) {
    copy_async(ring.address + LOAD * ring.scale_index(stage),
               ring.scales + scale_place(block, ring.task.kv_head, key) + ring.me.c / 2 * 4);
}

// Those of the keys that `await_piece` has waited for.
__device__ __forceinline__ float2 scales_of_piece(const KVRing& ring) {
    return reinterpret_cast<const float2*>(memory + ring.scale_index(ring.stage))[ring.me.c % 2];
}

static_assert(KEYS == SCALE_POSITIONS, "a lane's keys must be those of a scale");

const int LEAST_EXPONENT = -64;  // values with a smaller scale are read as if they had this one, which is next to nothing, too
const int EACH = HALF_DIM / 32;  // pairs of a head's row that a lane has

// ---- load: new rows ---------------------------------------------------------------------------------------------------

// A new row's key, rotated, or its value: a lane has the pairs of elements lane + 32 m and HALF_DIM behind them.
struct NewRow {
    float2 pairs[EACH];

    __device__ __forceinline__ NewRow(const AttentionArguments& args, const Task& task, int t, bool values, int lane) {
        const int head = HEADS + (values ? KV_HEADS : 0) + task.kv_head;
        const float* row = args.qkv + ((long long)(task.a * APPENDED_ROWS + t) * QKV_HEADS + head) * HEAD_DIM;
        const long long angles = (long long)(task.oldest_new + DEPTH_OF(task, t)) * HALF_DIM;
        const HeadNorm norm(row, norm_of_keys(args.head_norms));
#pragma unroll
        for (int m = 0; m < EACH; ++m) {
            const int i = lane + 32 * m;
            pairs[m] = make_float2(row[i], row[i + HALF_DIM]);
            if (!values)
                pairs[m] = rotated(norm.of(pairs[m].x, i), norm.of(pairs[m].y, i + HALF_DIM), args.cosine[angles + i],
                                   args.sine[angles + i]);
        }
    }

    // The largest absolute number of the whole row.
    __device__ __forceinline__ float largest() const {
        float found = 0;
#pragma unroll
        for (int m = 0; m < EACH; ++m) found = fmaxf(found, fmaxf(fabsf(pairs[m].x), fabsf(pairs[m].y)));
#pragma unroll
        for (int step = 16; step; step /= 2) found = fmaxf(found, __shfl_xor_sync(FULL_WARP, found, step));
        return found;
    }
};

// New positions of this chunk: keys, rotated, and values into the cache, each row's by one warp. A position whose scale a new
// position makes finds it there: in this step again by every warp that needs it, since another warp's may not be in the cache
// yet.
__device__ __forceinline__ void append_new_rows(const AttentionArguments& args, const Task& task) {
    const int* table = args.block_table + task.slot * MAX_BLOCKS;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    // Warps that rotate no queries begin.
    for (int n = (warp + WARPS - LOADS_32 % WARPS) % WARPS; n < 2 * task.appended; n += WARPS) {
        const int t = n / 2, at = task.oldest_new + t, first = t - at % SCALE_POSITIONS;  // `first`: the row of its scale
        const bool values = n % 2 == 1;
        if (at / CHUNK != task.chunk) continue;
        const int block = table[at / BLOCK];
        float* place = args.scales + scale_place(block, task.kv_head, at) + values;
        const NewRow row(args, task, t, values, lane);
        float scale;
        if (first < 0)
            scale = *place;
        else
            scale = scale_of((first == t ? row : NewRow(args, task, first, values, lane)).largest());
        if (first == t && lane == 0) *place = scale;
        const float factor = inverse(scale);
        const long long page = ((long long)block * KV_HEADS + task.kv_head) * BLOCK * HEAD_DIM;
        unsigned char* to = values ? args.v_pages + page + at % BLOCK : args.k_pages + page + at % BLOCK * HEAD_DIM;
        const int stride = values ? BLOCK : 1;
#pragma unroll
        for (int m = 0; m < EACH; ++m) {
            to[(lane + 32 * m) * stride] = fp8_code(row.pairs[m].x * factor);
            to[(lane + 32 * m + HALF_DIM) * stride] = fp8_code(row.pairs[m].y * factor);
        }
    }
}

// ---- dequantise and multiply ------------------------------------------------------------------------------------------

// And the scales of the lane's keys (x) and values (y).
struct Scores {
    TileScores of;
    float2 scale[LANE_SCALES];
};

// d += a · b, of which b are four codes.
__device__ __forceinline__ void multiply_codes(float (&d)[4], const unsigned (&a)[4], unsigned codes) {
    const FourNumbers b = dequantised(codes);
    mma_fp16(d, a[0], a[1], a[2], a[3], b.low, b.high, d[0], d[1], d[2], d[3]);
}

// d += p · v of a lane's part of values, and d += q · kᵀ of its part of keys, both without scales.
__device__ __forceinline__ void add_values(float (&d)[4], const Probabilities& p, uint4 v) {
    multiply_codes(d, p[0], v.x);
    multiply_codes(d, p[1], v.y);
    multiply_codes(d, p[2], v.z);
    multiply_codes(d, p[3], v.w);
}
__device__ __forceinline__ void add_keys(float (&d)[4], const QueryPart& q, uint4 k) { add_values(d, q.of, k); }

#if TREE_ROWS
#include "tree_fp8.cuh"
#else
// The scales of a lane's keys and values of the key tile at `key`.
__device__ __forceinline__ void find_scales(float2 (&scale)[LANE_SCALES], const KVRing& ring, int key) {
    scale[0] = scales_of_piece(ring);
}
#endif

// score = q · kᵀ for the key tile at `key`, without the keys' scale.
__device__ __forceinline__ void multiply_keys(Scores& score, KVRing& ring, int key) {
#pragma unroll
    for (int half = 0; half < LANE_SCALES; ++half) score.scale[half] = make_float2(1, 1);
    if (ring.wanted(key)) {
        const uint4* keys = ring.await_piece();
        find_scales(score.scale, ring, key);
        multiply_tile_keys(score.of, keys, key, ring.task, ring.me);
    }
    ring.refill(0, key);
}

// The scale of the values is a power of two, whose exponent is added to those of the probabilities.
__device__ __forceinline__ void update_softmax(Softmax& state, Scores& score, int key, const Task& task, const Thread& me) {
    float unit[LANE_SCALES], added[LANE_SCALES], divided[LANE_SCALES];
#pragma unroll
    for (int n = 0; n < LANE_SCALES; ++n) {
        // A scale that nothing of ours has written makes NaN of all that it scales.
        const bool known = sound(score.scale[n].x) && sound(score.scale[n].y);
        unit[n] = known ? score.scale[n].x * (float)LOG2E_OVER_SQRT_HEAD_DIM : __uint_as_float(0x7fffffffu);
        const int exponent = max(exponent_of(score.scale[n].y), LEAST_EXPONENT);
        added[n] = exponent, divided[n] = __uint_as_float((unsigned)(127 - exponent) << 23);
    }
#pragma unroll
    for (int half = 0; half < HALVES; ++half) {
        const int n = half % LANE_SCALES;
        update_softmax(state, score.of, half, unit[n], added[n], divided[n], key, task, me);
    }
}

__device__ __forceinline__ void pack_probabilities(Probabilities& p, const Scores& score) {
    pack_probabilities(p, score.of, HALVES > 1);
}

// out += p · v for the key tile at `key`.
__device__ __forceinline__ void multiply_values(Softmax& state, const Probabilities& p, KVRing& ring, int key) {
    if (ring.wanted(key)) {
        const uint4* values = ring.await_piece();
        multiply_tile_values(state.out, p, values, key, ring.task, ring.me);
    }
    ring.refill(1, key);
}
