"""PERF_MODE: seven invariants of a decode loop. Each is judged by evidence that the engine does not make itself.

    I1  no GEMM fall-back: every kernel of a traced block is one of the engine's own
    I2  no untuned kernel: every product of a block found the configuration that was tuned for its weight
    I3  multi-token mode: a request stops drafting only when it ends (EOS, stop token, limit)
    I4  no integrity failure of cache spans or attention masks
    I5  per-slot output: every slot's tokens account for its steps
    I6  no copy to the host, no wait and no allocation inside the loop
    I7  greedy decoding is deterministic, and speculation emits the baseline's tokens

Pure: the same blocks and traces give the same certificate, so it can be recomputed offline. What cannot be observed is
reported as not observable, never as held. A trace that the engine brought itself can break an invariant, since it then
testifies against itself; it can hold none. So it is with what an engine's log says. A server's own profiler, which the
harness starts and whose file the harness reads, can do both, and is named beside what it shows.

    certificate.py   the seven of a cell, or of all cells of a run, and who says so
    loop.py          invariants of the decode loop, its kernels and its slots
    spans.py         I4: cache spans and masks, of drawn steps that the engine shows
    drafting.py      I3: no request-step without drafts
    same_texts.py    I7: rounds, roles and the traced block have the same tokens
    evidence.py      what all of them need: evidence, and what is not observable
"""

from specgate.analysis.perf_invariants.certificate import IDS, certificates, certify

__all__ = ["IDS", "certificates", "certify"]
