// Keys and values in NVFP4 (nvfp4.cuh), as `attention.cu` takes them: little more than a quarter of the bytes.
//
// A code is float16 · 2^14 when its bits are in their places (`expanded` of fp16.cuh), the smallest number as a subnormal one,
// and an E4M3 scale is float16 / 2^7, at most 57,344. Their product, float16 · 2^7, is exact: at most six bits, between 2^-17
// and 21. So values and keys enter the tensor core as what they are but for the outer scale, which multiplies scores and
// outputs, with that power of two.
//
// Scales of keys belong to a lane's own sixteens. Those of values belong to a position, and eight lanes want the same: each
// makes an eighth of them float16, once for a key tile, for all to read from shared memory.
//
// Per 16 bytes, which are 32 numbers, a lane executes 36 instructions that put bits into their places, of which 12 are products
// or shifts that the multipliers do; 16 products of two numbers; and 8 of the tensor core. Of scales these are 6 more for keys,
// and for values 2 loads from shared memory and about 6.
#pragma once
#include "kv_codes.cuh"
#include "kv_ring.cuh"
#include "nvfp4.cuh"

__device__ __forceinline__ void KVRing::copy(int stage, bool values, int key, bool paced) const {
    const int block = __shfl_sync(FULL_WARP, task.entry, (key - task.chunk * CHUNK) / BLOCK);
    const long long page = (long long)block * KV_HEADS + task.kv_head;
    const unsigned to = address + LOAD * index(stage);
    const Cached* from = (values ? v_pages : k_pages) + page * CODE_BYTES + LOAD * me.lane;
    if (!values)
#pragma unroll
        for (int n = 0; n < SCALE_LOADS; ++n)
            copy_async(address + LOAD * (scale_index(stage) + 32 * n),
                       scales + page * SCALE_STRIDE + LOAD * (me.lane + 32 * n));
#pragma unroll
    for (int n = 0; n < PIECE / 32; ++n) {
        copy_async(to + LOAD * (n * 32), from + LOAD * (n * 32));
        pace(paced, n);
    }
}

// Request the outer scales of the slot, which its first cache block has.
__device__ __forceinline__ void find_outer(KVRing& ring) {
    const unsigned char* at = ring.scales + ((long long)ring.task.first_block * KV_HEADS + ring.task.kv_head) * SCALE_STRIDE;
    ring.outer = *reinterpret_cast<const float2*>(at + SCALE_BYTES);
}

const int SCALE_WORDS = SIXTEENS / 4;              // of a lane's scales of keys, or of values
const int VALUE_STRIDE = 2 * HEAD_DIM / LOAD + 2;  // 16-byte loads of a lane's positions; two more move them to other banks
const int VALUE_SCALES = STAGES * WARPS * (PIECE + 32 * SCALE_LOADS);  // where those of the warps' values begin

// ---- load: new rows ---------------------------------------------------------------------------------------------------

// Of a new row's key, rotated, or value: a lane has elements 4l … 4l + 3, and four lanes a block of 16.
struct NewFour {
    float of[4];
    unsigned largest = 0;  // of the block

    __device__ __forceinline__ NewFour(const AttentionArguments& args, const Task& task, int t, bool values, int lane) {
        const int head = HEADS + (values ? KV_HEADS : 0) + task.kv_head, i = 4 * lane % HEAD_DIM;
        const float* row = args.qkv + ((long long)(task.a * APPENDED_ROWS + t) * QKV_HEADS + head) * HEAD_DIM;
        const long long angles = (long long)(task.oldest_new + DEPTH_OF(task, t)) * HALF_DIM + i % HALF_DIM;
        float4 own = *reinterpret_cast<const float4*>(row + i);
        const HeadNorm norm(row, norm_of_keys(args.head_norms));
        if (!values) own = norm.of(own, i);
        of[0] = own.x, of[1] = own.y, of[2] = own.z, of[3] = own.w;
        if (!values) {
            const int behind = (i + HALF_DIM) % HEAD_DIM;
            const float4 other = norm.of(*reinterpret_cast<const float4*>(row + behind), behind);
            const float4 cos = *reinterpret_cast<const float4*>(args.cosine + angles);
            const float4 sin = *reinterpret_cast<const float4*>(args.sine + angles);
            const float others[4] = {other.x, other.y, other.z, other.w}, cosine[4] = {cos.x, cos.y, cos.z, cos.w};
            const float sine[4] = {sin.x, sin.y, sin.z, sin.w};
#pragma unroll
            for (int n = 0; n < 4; ++n)
                of[n] = i < HALF_DIM ? rotated(of[n], others[n], cosine[n], sine[n]).x
                                     : rotated(others[n], of[n], cosine[n], sine[n]).y;
        }
#pragma unroll
        for (int n = 0; n < 4; ++n) largest = max(largest, size_bits(of[n]));
        largest = max(largest, __shfl_xor_sync(FULL_WARP, largest, 1));
        largest = max(largest, __shfl_xor_sync(FULL_WARP, largest, 2));
    }

    // Of the whole row.
    __device__ __forceinline__ unsigned largest_of_all() const { return __reduce_max_sync(FULL_WARP, largest); }
};

// Where the keys, or values, of a cache block lie.
struct Page {
    unsigned* codes;
    unsigned char* scales;

    __device__ __forceinline__ Page(const AttentionArguments& args, const Task& task, int block, bool values) {
        const long long page = (long long)block * KV_HEADS + task.kv_head;
        codes = reinterpret_cast<unsigned*>((values ? args.v_pages : args.k_pages) + page * CODE_BYTES);
        scales = args.scales + page * SCALE_STRIDE;
    }
    __device__ __forceinline__ float* outer(bool values) const {
        return reinterpret_cast<float*>(scales + SCALE_BYTES) + values;
    }
};

// The outer scale: that of the slot's first cache block or, where a new row is the first position, what it makes, which the
// first warp of its kind keeps.
__device__ __forceinline__ float outer_of(const AttentionArguments& args, const Task& task, bool values, bool keeps, int lane) {
    float* place = Page(args, task, task.first_block, values).outer(values);
    if (task.oldest_new > 0) return *place;
    const float outer = outer_scale(NewFour(args, task, 0, values, lane).largest_of_all());
    if (keeps && lane == 0) *place = outer;
    return outer;
}

// The word of a key's codes that the lane and its neighbour have.
__device__ __forceinline__ unsigned word_of(const NewFour& row, const BlockScale& scale, int lane) {
    unsigned word = 0;
#pragma unroll
    for (int n = 0; n < 4; ++n) word |= placed(scale.code_of(row.of[n]), lane % 2 * 4 + n);
    return word | __shfl_xor_sync(FULL_WARP, word, 1);
}

// A new key: its codes and its scales.
__device__ __forceinline__ void append_key(const AttentionArguments& args, const Task& task, int t, int lane) {
    const int at = task.oldest_new + t;
    const Page page(args, task, args.block_table[task.slot * MAX_BLOCKS + at / BLOCK], false);
    const NewFour row(args, task, t, false, lane);
    const BlockScale scale(row.largest, outer_of(args, task, false, t == 0, lane));
    const unsigned word = word_of(row, scale, lane);
    if (lane >= HEAD_DIM / 4) return;
    if (lane % 2 == 0) page.codes[key_code(at % BLOCK, 4 * lane).word] = word;
    if (lane % 4 == 0) page.scales[key_scale(at % BLOCK, 4 * lane)] = (unsigned char)scale.code;
}

// The new values among the eight positions from `begin` on, whose codes lie in the same words. Those of older positions stay;
// whoever else does the same here, for another query tile, writes the same words.
__device__ __forceinline__ void append_values(const AttentionArguments& args, const Task& task, int begin, int lane) {
    const Page page(args, task, args.block_table[task.slot * MAX_BLOCKS + begin / BLOCK], true);
    const bool has = lane < HEAD_DIM / 4;
    unsigned *places[4], words[4];
#pragma unroll
    for (int n = 0; n < 4; ++n) {
        places[n] = page.codes + value_code(begin % BLOCK, (4 * lane + n) % HEAD_DIM).word;
        words[n] = __ldcg(places[n]);
    }
    const int first = max(begin - task.oldest_new, 0), end = min(begin + 8 - task.oldest_new, task.appended);
    const float outer = outer_of(args, task, true, first == 0, lane);
#pragma unroll 1
    for (int t = first; t < end; ++t) {
        const int at = task.oldest_new + t;
        const NewFour row(args, task, t, true, lane);
        const BlockScale scale(row.largest, outer);
#pragma unroll
        for (int n = 0; n < 4; ++n) words[n] = (words[n] & ~placed(15, at % 8)) | placed(scale.code_of(row.of[n]), at % 8);
        if (has && lane % 4 == 0) page.scales[value_scale(at % BLOCK, 4 * lane)] = (unsigned char)scale.code;
    }
#pragma unroll
    for (int n = 0; n < 4; ++n)
        if (has) *places[n] = words[n];
}

// New positions of this chunk into the cache: each key by one warp, and the values of each eight positions.
__device__ __forceinline__ void append_new_rows(const AttentionArguments& args, const Task& task) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, newest = task.oldest_new + task.appended - 1;
    const int eights = newest / 8 - task.oldest_new / 8 + 1;
    // Warps that rotate no queries begin.
    for (int n = (warp + WARPS - LOADS_32 % WARPS) % WARPS; n < eights + task.appended; n += WARPS) {
        const int t = n - eights, begin = (task.oldest_new / 8 + n) * 8;
        if (n < eights) {
            if (begin / CHUNK == task.chunk) append_values(args, task, begin, lane);
        } else if ((task.oldest_new + t) / CHUNK == task.chunk) {
            append_key(args, task, t, lane);
        }
    }
}

// ---- scales -----------------------------------------------------------------------------------------------------------

// A lane's scales of keys and values, of the keys that `await_piece` has waited for.
struct LaneScales {
    unsigned keys[SCALE_WORDS], values[SCALE_WORDS];

    __device__ __forceinline__ explicit LaneScales(KVRing& ring) {
        unsigned words[2 * SCALE_WORDS];
#pragma unroll
        for (int n = 0; n < SCALE_LOADS; ++n) {
            const uint4 four = memory[ring.scale_index(ring.stage) + 32 * n];
            words[4 * n] = four.x, words[4 * n + 1] = four.y, words[4 * n + 2] = four.z, words[4 * n + 3] = four.w;
        }
#pragma unroll
        for (int n = 0; n < 2 * SCALE_WORDS; ++n) {
            ring.unsound |= unsound_among(words[n]);
            (n < SCALE_WORDS ? keys[n] : values[n - SCALE_WORDS]) = words[n];
        }
    }

    // That of sixteen n of the keys, twice.
    __device__ __forceinline__ unsigned of_key(int n) const {
        return scales_fp16(__byte_perm(keys[n / 4], 0, 0x0404u + 0x1010u * (n % 4)));
    }
};

// The scales of the values of lanes c, [block of 16 elements][position 16c …] as float16.
__device__ __forceinline__ uint4* value_scales(const Thread& me) {
    return memory + VALUE_SCALES + (me.warp * 4 + me.c) * VALUE_STRIDE;
}

__device__ __forceinline__ void share_value_scales(const LaneScales& scales, const Thread& me) {
    __syncwarp();  // all have used those of the key tile before
#pragma unroll
    for (int n = 0; n < SCALE_WORDS; n += 2) {
        const unsigned low = scales.values[n], high = scales.values[n + 1];
        value_scales(me)[(SCALE_WORDS * me.g + n) / 2] =
            make_uint4(scales_fp16(__byte_perm(low, 0, 0x1404)), scales_fp16(__byte_perm(low, 0, 0x3424)),
                       scales_fp16(__byte_perm(high, 0, 0x1404)), scales_fp16(__byte_perm(high, 0, 0x3424)));
    }
    __syncwarp();
}

// ---- dequantise and multiply ------------------------------------------------------------------------------------------

struct Scores {
    TileScores of;
    float unit;  // of a score, in units of log2
};

// Sixteen codes that a lane multiplies one after the other, and the scales of each eight of them as float16, in pairs of
// neighbours.
struct Sixteen {
    uint2 codes;
    uint4 first, last;
};

// A key's have one scale, which `twice` has in both halves.
__device__ __forceinline__ Sixteen sixteen_of_key(uint2 codes, unsigned twice) {
    const uint4 same = make_uint4(twice, twice, twice, twice);
    return {codes, same, same};
}

// What the piece of a key tile's keys is beside its scales, and that of its values.
struct KeyPiece {
    const uint4* codes;
    const LaneScales& scales;
};
struct ValuePiece {
    const uint4 *codes, *scales;
};

// Sixteen n of a piece.
__device__ __forceinline__ uint2 codes_of(const uint4* piece, int n) {
    const uint4 two = piece[n / 2 * 32];
    return n % 2 ? make_uint2(two.z, two.w) : make_uint2(two.x, two.y);
}
__device__ __forceinline__ Sixteen key_of(const KeyPiece& keys, int wide, int i) {
    const int n = wide * TILES + i;
    return sixteen_of_key(codes_of(keys.codes, n), keys.scales.of_key(n));
}
__device__ __forceinline__ Sixteen value_of(const ValuePiece& values, int i) {
    return {codes_of(values.codes, i), values.scales[i & ~1], values.scales[i | 1]};
}

// d += a · b, of which b are eight codes times their scales.
__device__ __forceinline__ void multiply_eight(float (&d)[4], const unsigned (&a)[4], const unsigned (&then)[4], unsigned codes,
                                               uint4 scales) {
    const Eight b = expanded(codes);
    mma_fp16(d, a[0], a[1], a[2], a[3], product_fp16(b.pair[0], scales.x), product_fp16(b.pair[1], scales.y), d[0], d[1], d[2],
             d[3]);
    mma_fp16(d, then[0], then[1], then[2], then[3], product_fp16(b.pair[2], scales.z), product_fp16(b.pair[3], scales.w), d[0],
             d[1], d[2], d[3]);
}

// d += p · v of a lane's part of values, and d += q · kᵀ of its part of keys, both without the outer scale.
__device__ __forceinline__ void add_values(float (&d)[4], const Probabilities& p, const Sixteen& v) {
    multiply_eight(d, p[0], p[1], v.codes.x, v.first);
    multiply_eight(d, p[2], p[3], v.codes.y, v.last);
}
__device__ __forceinline__ void add_keys(float (&d)[4], const QueryPart& q, const Sixteen& k) { add_values(d, q.of, k); }

#if TREE_ROWS
#include "tree_nvfp4.cuh"
#endif

// score = q · kᵀ for the key tile at `key`, without the outer scale.
__device__ __forceinline__ void multiply_keys(Scores& score, KVRing& ring, int key) {
    const float scale = ring.outer.x;
    // One that nothing of ours has written makes NaN of all that it scales.
    score.unit = sound(scale) ? scale * (float)(128.0 * LOG2E_OVER_SQRT_HEAD_DIM) : __uint_as_float(0x7fffffffu);
    if (ring.wanted(key)) {
        const uint4* keys = ring.await_piece();
        const LaneScales scales(ring);
        share_value_scales(scales, ring.me);
        multiply_tile_keys(score.of, KeyPiece{keys, scales}, key, ring.task, ring.me);
    }
    ring.refill(0, key);
}

__device__ __forceinline__ void update_softmax(Softmax& state, Scores& score, int key, const Task& task, const Thread& me) {
#pragma unroll
    for (int half = 0; half < HALVES; ++half) update_softmax(state, score.of, half, score.unit, 0, 1, key, task, me);
}

// Rows without a query have scores of zero, whose powers are not taken. As constants, the compiler would write these anew for
// most products: a hundred instructions.
__device__ __forceinline__ void pack_probabilities(Probabilities& p, const Scores& score) {
    pack_probabilities(p, score.of, true);
}

// out += p · v for the key tile at `key`, without the outer scale.
__device__ __forceinline__ void multiply_values(Softmax& state, const Probabilities& p, KVRing& ring, int key) {
    if (ring.wanted(key)) {
        const uint4* values = ring.await_piece();
        multiply_tile_values(state.out, p, ValuePiece{values, value_scales(ring.me)}, key, ring.task, ring.me);
    }
    ring.refill(1, key);
}

// What all outputs lack: the outer scale of values. A scale that nothing of ours has written makes NaN of them.
__device__ __forceinline__ void scale_outputs(Softmax& state, const KVRing& ring) {
    const bool known = __ballot_sync(FULL_WARP, ring.unsound != 0) == 0 && sound(ring.outer.y);
    const float unit = known ? ring.outer.y * 128.0f : __uint_as_float(0x7fffffffu);
#pragma unroll
    for (int n = 0; n < LOADS_8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) state.out[n][i] *= unit;
}
