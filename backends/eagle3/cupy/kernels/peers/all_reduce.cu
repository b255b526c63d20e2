// stream[row] += Σ over ranks of partial[row], and the pre-norm input of the next norm: normed = stream · norm_weight, squares
// = sums of stream² over eight elements each. The products of a target that is split among RANKS GPUs leave partial sums over
// k; every rank sends its own to all others and adds up all of them itself.
//
// What one block does: COLUMNS columns of all rows, one warp per row at a time, two columns per lane. It first sends all that
// it has, then waits for what others have: no rank waits for another before it has sent.
//
// Layouts: stream, partial and normed [row][HIDDEN]; squares [row][HIDDEN / 8]; exchanges [block]; a mailbox is
// [exchange % 2][sender][MAX_ROWS][HIDDEN / 2] pairs of columns, a pair of words each (peer_words.cuh).
//
// Sums are float32 and always ((rank 0 + rank 1) + rank 2) + …, then added to the stream. So all ranks get the same bits, and a
// row's do not depend on the number of rows.
//
// Early starts: it lets the next kernel start at once, as a product does, so that weights stream in while GPUs wait for each
// other. When that kernel starts, all blocks of this one are on the GPU, and can take no room from each other.
#include "bf16.cuh"
#include "block.cuh"
#include "dependent.cuh"
#include "peer_words.cuh"

const int COLUMNS = 64, PAIRS = HIDDEN / 2, WARPS = THREADS / 32;

static_assert(HIDDEN % COLUMNS == 0, "HIDDEN must be a multiple of 64: the columns of a block");
static_assert(RANKS > 1 && RANKS <= MOST_RANKS, "RANKS: 2 to 4");

struct AllReduceArguments {           // launched on [HIDDEN / COLUMNS] where R <= MOST
    float* stream;                    // [R, HIDDEN]
    bf16* normed;                     // [R, HIDDEN]
    float* squares;                   // [R, HIDDEN / 8]
    int* exchanges;                   // [HIDDEN / 64]
    PeerWord *mailbox_0, *mailbox_1;  // [2, RANKS, MAX_ROWS, HIDDEN]
    PeerWord* mailbox_2;              // [2, RANKS, MAX_ROWS, HIDDEN] if RANKS > 2
    PeerWord* mailbox_3;              // [2, RANKS, MAX_ROWS, HIDDEN] if RANKS > 3
    int *fault, *active_count;        // [1]
    const float* partial;             // [MAX_ROWS, HIDDEN]
    const bf16* norm_weight;          // [HIDDEN]
    int rows_per_slot, rank;
};

// Where a mailbox has the pair of columns `pair` of a row that `sender` sends.
__device__ __forceinline__ long long place(unsigned exchange, int sender, int row, int pair) {
    return ((((long long)(exchange % 2) * RANKS + sender) * MAX_ROWS + row) * PAIRS + pair) * 2;
}

__device__ __forceinline__ float2 two_of(const float* rows, int row, int pair) {
    return reinterpret_cast<const float2*>(rows)[(long long)row * PAIRS + pair];
}

__device__ __forceinline__ float number_of(PeerWord word) { return __uint_as_float((unsigned)word); }

// Write two columns of a row of the stream, and what the next norm wants of them.
__device__ __forceinline__ void put(const AllReduceArguments& args, int row, int pair, float2 value, float2 weight) {
    const long long at = (long long)row * PAIRS + pair;
    reinterpret_cast<float2*>(args.stream)[at] = value;
    reinterpret_cast<unsigned*>(args.normed)[at] = pack_bf16(value.x * weight.x, value.y * weight.y);
    float square = value.x * value.x + value.y * value.y;  // summed over the eight columns of four neighbouring lanes
    square += __shfl_xor_sync(FULL_WARP, square, 1);
    square += __shfl_xor_sync(FULL_WARP, square, 2);
    if (pair % 4 == 0) args.squares[at / 4] = square;
}

extern "C" __global__ __launch_bounds__(THREADS) void all_reduce(const AllReduceArguments args) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, pair = blockIdx.x * (COLUMNS / 2) + lane;
    // The weight of a norm comes from memory, once per step: a trip to be made early.
    const float2 weight = make_float2(to_float(args.norm_weight[2 * pair]), to_float(args.norm_weight[2 * pair + 1]));
    let_next_start();
    await_previous();
    const int count = *args.active_count * args.rows_per_slot;
    if (count == 0) return;
    const unsigned exchange = next_exchange(args.exchanges + blockIdx.x);
    PeerWord* const mailboxes[MOST_RANKS] = {args.mailbox_0, args.mailbox_1, args.mailbox_2, args.mailbox_3};

    float2 first = {0, 0};  // of this warp's first row, which is mostly its only one
#pragma unroll 1
    for (int row = warp; row < count; row += WARPS) {
        const float2 own = two_of(args.partial, row, pair);
        if (row == warp) first = own;
#pragma unroll
        for (int rank = 0; rank < RANKS; ++rank)
            if (rank != args.rank)
                send(mailboxes[rank] + place(exchange, args.rank, row, pair), __float_as_uint(own.x), __float_as_uint(own.y),
                     exchange);
    }

    const PeerWord* mine = mailboxes[0];
#pragma unroll
    for (int rank = 1; rank < RANKS; ++rank)
        if (rank == args.rank) mine = mailboxes[rank];
    bool late = false;
#pragma unroll 1
    for (int row = warp; row < count; row += WARPS) {
        // Requested before the wait for other GPUs.
        const float2 own = row == warp ? first : two_of(args.partial, row, pair), before = two_of(args.stream, row, pair);
        Mail mail[RANKS] = {};
        if (!late)
            late =
                !await_mail(mail, args.rank, exchange, [&](int sender) { return mine + place(exchange, sender, row, pair); });
        float2 sum = {0, 0};
#pragma unroll
        for (int rank = 0; rank < RANKS; ++rank) {
            const float x = rank == args.rank ? own.x : number_of(mail[rank].first);
            const float y = rank == args.rank ? own.y : number_of(mail[rank].second);
            sum.x = rank ? sum.x + x : x;
            sum.y = rank ? sum.y + y : y;
        }
        __syncwarp();
        put(args, row, pair, make_float2(before.x + sum.x, before.y + sum.y), weight);
    }
    if (late) give_up(args.fault, args.active_count, PEER_LATE);
    __syncthreads();  // by now all threads have read which exchange it is
    if (threadIdx.x == 0) args.exchanges[blockIdx.x] = (int)exchange;
}
