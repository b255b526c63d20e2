// Nodes of a tree over a cache in NVFP4.
//
// In the cache, a node's key has words of its own, and its scales bytes of their own. Its value shares each word with those of
// seven other positions, so that its codes enter by an exclusive or of what changes in their bits: several nodes enter one word
// side by side, and what earlier positions have in it is never touched. The outer scale is the slot's, made at position 0,
// which no node stands at.
//
// In shared memory, a node has HEAD_DIM / 8 words of eight codes, a key's as in the cache, of a value code n at bits 4n; behind
// them is the scale of each 16 elements as float16, NaN where it is none of ours.
#pragma once
#include "nvfp4.cuh"
#include "tree_rows.cuh"

// A node in shared memory.
struct OwnRow {
    unsigned* words;

    __device__ __forceinline__ OwnRow(int node, bool values)
        : words(reinterpret_cast<unsigned*>(values ? node_values[node] : node_keys[node])) {}
    __device__ __forceinline__ unsigned short& scale(int block) const {
        return reinterpret_cast<unsigned short*>(words + HEAD_DIM / 8)[block];
    }
    __device__ __forceinline__ void put_scale(int block, unsigned code) const {
        scale(block) = unsound_among(code * 0x01010101u) ? 0x7fff : (unsigned short)scales_fp16(code << 8);
    }
    // Codes of the values of elements 4 · `four` … 4 · `four` + 3.
    __device__ __forceinline__ void put_four(int four, const unsigned (&codes)[4]) const {
        reinterpret_cast<unsigned short*>(words)[four] =
            (unsigned short)(codes[0] | codes[1] << 4 | codes[2] << 8 | codes[3] << 12);
    }
};

struct NodeRow {
    const int node;
    const bool values;
    const Page page;
    const int place;  // in the page
    const OwnRow own;

    __device__ __forceinline__ NodeRow(const AttentionArguments& args, const Task& task, int node, bool values, int block,
                                       int place)
        : node(node), values(values), page(args, task, block, values), place(place), own(node, values) {}

    __device__ __forceinline__ unsigned char* scale(int element) const {
        return page.scales + (values ? value_scale(place, element) : key_scale(place, element));
    }

    __device__ __forceinline__ void make(const AttentionArguments& args, const Task& task, bool enters, int lane) const {
        const int element = 4 * lane;
        const NewFour row(args, task, node - FIRST_NODE, values, lane);
        const BlockScale of_block(row.largest, *Page(args, task, task.first_block, values).outer(values));
        const unsigned word = values ? 0 : word_of(row, of_block, lane);
        if (element >= HEAD_DIM) return;
        if (lane % 4 == 0) {
            own.put_scale(lane / 4, of_block.code);
            if (enters) *scale(element) = (unsigned char)of_block.code;
        }
        if (!values) {
            if (lane % 2) return;
            own.words[lane / 2] = word;
            if (enters) page.codes[key_code(place, element).word] = word;
            return;
        }
        unsigned codes[4];
#pragma unroll
        for (int n = 0; n < 4; ++n) codes[n] = of_block.code_of(row.of[n]);
        own.put_four(lane, codes);
        if (!enters) return;
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            const CodePlace at = value_code(place, element + n);
            unsigned* shared = page.codes + at.word;
            atomicXor(shared, (__ldcg(shared) & placed(15, at.index)) ^ placed(codes[n], at.index));
        }
    }

    __device__ __forceinline__ void fetch(int lane) const {
        if (lane < HEAD_DIM / 16) own.put_scale(lane, __ldcg(scale(16 * lane)));
        if (!values) {
            if (lane < HEAD_DIM / 8) own.words[lane] = __ldcg(page.codes + key_code(place, 8 * lane).word);
            return;
        }
        if (lane >= HEAD_DIM / 4) return;
        unsigned codes[4];
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            const CodePlace at = value_code(place, 4 * lane + n);
            codes[n] = code_at(__ldcg(page.codes + at.word), at.index);
        }
        own.put_four(lane, codes);
    }
};

// ---- multiply ---------------------------------------------------------------------------------------------------------

__device__ __forceinline__ Sixteen node_key(int node, int wide, const Thread& me) {
    const OwnRow row(node, false);
    const int n = 4 * wide + me.c;
    return sixteen_of_key(reinterpret_cast<const uint2*>(row.words)[n], __byte_perm(row.scale(n), 0, 0x1010));
}

// The piece of values with those of a path at its positions: a lane writes them over the cache's, and over another path's,
// which its rows do not see. As the lane's own loads they would need more registers than there are.
__device__ __forceinline__ ValuePiece values_of_path(const ValuePiece& values, const int (&nodes)[KEYS], const Thread& me) {
#pragma unroll 1
    for (int i = 0; i < LOADS_8; ++i) {
        uint2* at = const_cast<uint2*>(reinterpret_cast<const uint2*>(values.codes + i / 2 * 32)) + i % 2;
        uint2 codes = *at;
#pragma unroll
        for (int e = 0; e < KEYS; ++e) {
            if (nodes[e] == NOBODY) continue;
            unsigned& word = e < 8 ? codes.x : codes.y;
            word = (word & ~placed(15, e % 8)) | placed(OwnRow(nodes[e], true).words[i] >> 4 * me.g & 15, e % 8);
        }
        *at = codes;
    }
    __syncwarp();  // all have used the scales of the path before
    unsigned short* scales = const_cast<unsigned short*>(reinterpret_cast<const unsigned short*>(values.scales)) + 16 * me.g;
#pragma unroll
    for (int e = 0; e < KEYS; ++e)
        if (nodes[e] != NOBODY && me.g < HEAD_DIM / 16) scales[e] = OwnRow(nodes[e], true).scale(me.g);
    __syncwarp();
    return values;
}
