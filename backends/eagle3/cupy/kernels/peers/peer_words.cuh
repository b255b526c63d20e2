// Numbers that pass from GPU to GPU over peer memory, 32 bits at a time, each in one word with the number of its exchange.
//
// A word of 64 bits arrives whole or not at all. So whoever sees the number of the exchange that it waits for has what was sent
// with it: no flag stands beside the data, no fence between the two, and one trip over NVLink is enough. Words are written into
// the memory of the GPU that reads them, so that waiting for one makes no traffic between GPUs.
//
// Which exchange it is. Every block of a kernel counts its own exchanges, in a word that only this block of this GPU's kernels
// reads and writes. All GPUs run the same kernels with as many blocks, so that their counts agree, whatever is in a graph and
// however often it is replayed. A kernel that has no rows exchanges nothing and does not count, on any GPU.
//
// Why two mailboxes are enough. Exchange e writes where e − 2 did. A GPU begins e when its kernel of e − 1 has ended; that
// ended with words which every peer has sent in e − 1; and a peer sent these after `await_previous`, which is after its kernel
// of e − 2 had ended, and read its mail. So nothing is overwritten that somebody may still want, without a word of thanks.
//
// The count starts at 1 and mailboxes at zero. A word of 2^32 exchanges ago would be taken for a new one, if nothing had been
// written in its place since: that is 36 hours of steps at full speed in which a row was never used.
#pragma once
#include "slots.cuh"

// Bits of `fault` beside those of slots.cuh.
enum PeerFault {
    PEER_LATE = 32,     // another GPU sent nothing for LIMIT_MS
    PEERS_DIFFER = 64,  // another GPU reads other tokens, or at another position
};

typedef unsigned long long PeerWord;

const int MOST_RANKS = 4;

struct Mail {
    PeerWord first, second;
};

// 16 bytes, of which each word arrives whole. `to` may be memory of another GPU.
__device__ __forceinline__ void send(PeerWord* to, unsigned first, unsigned second, unsigned exchange) {
    const PeerWord low = (PeerWord)exchange << 32 | first, high = (PeerWord)exchange << 32 | second;
    asm volatile("st.relaxed.sys.global.v2.b64 [%0], {%1, %2};" ::"l"(to), "l"(low), "l"(high) : "memory");
}

__device__ __forceinline__ Mail look(const PeerWord* at) {
    Mail mail;
    asm volatile("ld.relaxed.sys.global.v2.b64 {%0, %1}, [%2];" : "=l"(mail.first), "=l"(mail.second) : "l"(at) : "memory");
    return mail;
}

__device__ __forceinline__ bool has_come(const Mail& mail, unsigned exchange) {
    return (unsigned)(mail.first >> 32) == exchange && (unsigned)(mail.second >> 32) == exchange;
}

// The number of the exchange that begins. Volatile, so that it is read in the L2 cache.
__device__ __forceinline__ unsigned next_exchange(const int* count) {
    return (unsigned)*static_cast<const volatile int*>(count) + 1;
}

// How long a thread has waited by now. The clock is asked for the first time after some looks in vain.
struct Patience {
    long long since = 0;
    int looks = 0;

    __device__ __forceinline__ bool is_over() {
        if (++looks % 64) return false;
        long long time;
        asm volatile("mov.b64 %0, %globaltimer;" : "=l"(time));
        if (since == 0) since = time;
        return time - since > LIMIT_MS * 1000000ll;
    }
};

// Waits for the mail of every rank but `rank`, from `at(sender)`. False if one is late; after that nobody needs to wait any
// more.
template <typename At>
__device__ __forceinline__ bool await_mail(Mail (&mail)[RANKS], int rank, unsigned exchange, At at) {
    Patience patience;
    bool come[RANKS];
#pragma unroll
    for (int sender = 0; sender < RANKS; ++sender) come[sender] = sender == rank;
    for (;;) {
        bool all = true;
#pragma unroll
        for (int sender = 0; sender < RANKS; ++sender) {
            if (come[sender]) continue;
            mail[sender] = look(at(sender));
            come[sender] = has_come(mail[sender], exchange);
            all &= come[sender];
        }
        if (all) return true;
        if (patience.is_over()) return false;
    }
}

// Another GPU is lost: say so, and let no step do anything more, so that the run ends.
__device__ __forceinline__ void give_up(int* fault, int* active_count, int why) {
    atomicOr(fault, why);
    *active_count = 0;
}
