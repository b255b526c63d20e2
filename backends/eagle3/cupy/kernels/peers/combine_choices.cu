// choices[row] = the best choice of all ranks. Each rank's LM head has PART columns of the vocabulary, and leaves choices with
// columns of its own part; what is left here has token ids, the same on every rank.
//
// With its choice a rank sends the token of the row and its position. These must be the same on all ranks, whose partial sums
// would otherwise belong to different tokens: where they are not, the run ends.
//
// One block, one thread per row. Layouts: choices [row]; drafts [slot][SLOT_ROWS]; exchanges [1]; a mailbox is
// [exchange % 2][sender][MAX_ROWS] rows of two pairs of words (peer_words.cuh).
#include "argmax.cuh"
#include "dependent.cuh"
#include "peer_words.cuh"

static_assert(RANKS > 1 && RANKS <= MOST_RANKS, "RANKS: 2 to 4");

struct CombineChoicesArguments {                       // launched on [1] where R <= MOST
    Choice* choices;                                   // [R]
    int* exchanges;                                    // [1]
    PeerWord *mailbox_0, *mailbox_1;                   // [2, RANKS, MAX_ROWS, 4]
    PeerWord* mailbox_2;                               // [2, RANKS, MAX_ROWS, 4] if RANKS > 2
    PeerWord* mailbox_3;                               // [2, RANKS, MAX_ROWS, 4] if RANKS > 3
    int *fault, *active_count;                         // [1]
    const int *length, *last_token, *drafts, *active;  // [S], [S], [S, SLOT_ROWS], [S]
    int rank;
};

__device__ __forceinline__ long long place(unsigned exchange, int sender, int row) {
    return (((long long)(exchange % 2) * RANKS + sender) * MAX_ROWS + row) * 4;
}

extern "C" __global__ __launch_bounds__(THREADS) void combine_choices(const CombineChoicesArguments args) {
    await_previous();
    let_next_start();
    const int row = threadIdx.x, a = row / ROWS, t = row % ROWS, count = *args.active_count;
    if (count == 0) return;
    const unsigned exchange = next_exchange(args.exchanges);
    if (a < count) {
        PeerWord* const mailboxes[MOST_RANKS] = {args.mailbox_0, args.mailbox_1, args.mailbox_2, args.mailbox_3};
        const int slot = args.active[a], position = args.length[slot] + t;
        const int token = t == 0 ? args.last_token[slot] : args.drafts[slot * SLOT_ROWS + t - 1];
        // Among equal logits the lowest id wins, so an id is subtracted (argmax.cuh).
        Choice best = args.choices[row] - (Choice)(args.rank * PART);
        const PeerWord* mine = mailboxes[0];
#pragma unroll
        for (int rank = 0; rank < RANKS; ++rank) {
            if (rank == args.rank) {
                mine = mailboxes[rank];
                continue;
            }
            PeerWord* to = mailboxes[rank] + place(exchange, args.rank, row);
            send(to, (unsigned)best, logit_of(best), exchange);
            send(to + 2, (unsigned)token, (unsigned)position, exchange);
        }
        Mail choices[RANKS] = {}, rows[RANKS] = {};
        if (await_mail(choices, args.rank, exchange, [&](int sender) { return mine + place(exchange, sender, row); }) &&
            await_mail(rows, args.rank, exchange, [&](int sender) { return mine + place(exchange, sender, row) + 2; })) {
#pragma unroll
            for (int rank = 0; rank < RANKS; ++rank) {
                if (rank == args.rank) continue;
                best = max(best, (Choice)(unsigned)choices[rank].second << 32 | (unsigned)choices[rank].first);
                const bool same = (int)rows[rank].first == token && (int)rows[rank].second == position;
                if (!same) give_up(args.fault, args.active_count, PEERS_DIFFER);
            }
        } else {
            give_up(args.fault, args.active_count, PEER_LATE);
        }
        args.choices[row] = best;
    }
    __syncthreads();  // by now all threads have read which exchange it is
    if (threadIdx.x == 0) *args.exchanges = (int)exchange;
}
