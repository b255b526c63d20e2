// What a text has of each token, `history` [slot][VOCAB]: how often it was emitted, in 31 bits, and above them whether the
// prompt has it.
//
// It has what was committed. The drafts that a step verifies are not in it: a row counts those before it by itself, and so a
// rejected one leaves nothing behind.
#pragma once

#define IN_PROMPT 0x80000000u

__device__ __forceinline__ int emitted_of(unsigned entry) { return (int)(entry & ~IN_PROMPT); }

__device__ __forceinline__ bool in_prompt(unsigned entry) { return entry & IN_PROMPT; }
