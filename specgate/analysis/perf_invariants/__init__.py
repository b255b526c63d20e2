"""PERF_MODE: seven invariants of a decode loop, none of which holds by the engine's word alone.

    I1  no GEMM fall-back: every kernel of a traced block is one of the engine's own
    I2  no untuned kernel: every product is launched as the configuration that was tuned for its weight has it
    I3  multi-token mode: a request stops drafting only when it ends (EOS, stop token, limit)
    I4  no integrity failure of cache spans or attention masks
    I5  per-slot output: every slot's tokens account for its steps
    I6  no copy to the host, no wait and no allocation inside the loop
    I7  greedy decoding is deterministic, and speculation emits the baseline's tokens

Pure: the same blocks and traces give the same certificate, so it can be recomputed offline. What cannot be observed is
reported as not observable, never as held. What the engine says itself (a trace of its own, counters of hits and
failures, its log) can break an invariant, since it then testifies against itself; it can hold none. A server's own
profiler, which the harness starts and whose file the harness reads, can do both, and is named beside what it shows.

The engine's part in what holds: it lists its kernels (I1), states the launches that its tuned file makes (I2), records
its steps (I3, I5), and shows its cache and trees in drawn steps (I4). The harness compares each with what it sees or
computes itself: the profile, the tokens and the prompts.

    certificate.py   the seven of a cell, or of all cells of a run, and who says so
    loop.py          invariants of the decode loop, its kernels and its slots
    spans.py         I4: cache spans and masks, of drawn steps that the engine shows
    drafting.py      I3: no request-step without drafts
    same_texts.py    I7: rounds, roles and the traced block have the same tokens
    evidence.py      what all of them need: evidence, and what is not observable
"""
