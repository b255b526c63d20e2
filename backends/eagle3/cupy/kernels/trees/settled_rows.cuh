// A path's keys and values in `tree_settle.cu`, of a cache whose pages have positions in rows: bfloat16 and E4M3.
#pragma once

const int LOADS = HEAD_DIM / NUMBERS;  // of 16 bytes, of a row of keys

// The thread's element of the values.
struct Element {
    const Cached* own;

    __device__ __forceinline__ Element() : own(reinterpret_cast<const Cached*>(memory + threadIdx.x * PIECES)) {}

    // Its number at a place of `memory`, and as number `e` of the words of a piece.
    __device__ __forceinline__ unsigned number(int from) const { return own[from]; }
    __device__ __forceinline__ static void put(unsigned (&words)[4], int e, unsigned number) {
        const unsigned shift = 32 * e / (NUMBERS / 4) % 32;
        words[e * 4 / NUMBERS] = shift ? words[e * 4 / NUMBERS] | number << shift : number;
    }
    __device__ __forceinline__ static void store(Cached* page, int at, const unsigned (&words)[4]) {
        *reinterpret_cast<uint4*>(page + threadIdx.x * BLOCK + at % BLOCK) = make_uint4(words[0], words[1], words[2], words[3]);
    }
};

// Of values, all threads move an element each, and a few a column of keys.
__device__ __forceinline__ void move_cached(const TreeSettleArguments& args, const Part& part) {
    auto of_keys = [&](int node) {
        const int at = part.length + node;
        return reinterpret_cast<uint4*>(args.k_pages + part.page_of(at) + at % BLOCK * HEAD_DIM) + threadIdx.x % LOADS;
    };
    const bool has_keys = (int)threadIdx.x >= THREADS - LOADS;
    Column<uint4> keys;
    if (has_keys) keys.load(of_keys);
    move_values<Element>(args.v_pages, part);
    if (has_keys) keys.store(of_keys);
}

#if KV_FP8
// The scale that the accepted path makes of a head's keys and values, where it makes one.
__device__ __forceinline__ void move_scale(const TreeSettleArguments& args, const Part& part) {
    const int d = -part.length & (SCALE_POSITIONS - 1), at = part.length + d, kind = threadIdx.x;
    if (d > accepted || kind > 1) return;
    const int node = d ? node_at(d - 1) : 0, block = args.block_table[part.slot * MAX_BLOCKS + at / BLOCK];
    const int row = ((part.layer * args.scaled_slots + part.slot) * KV_HEADS + part.head) * MAX_ROWS + node;
    args.scales[scale_place(part.layer * BLOCKS + block, part.head, at) + kind] = args.node_scales[2 * row + kind];
}
#endif
