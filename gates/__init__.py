"""The judges. They come in by entry point, as `specgate.plugins` lists them; a policy names those it asks.

    validity.py           may this cell be judged at all?
    tokens/               does a spec cell emit the baseline's tokens?
    acceptance.py         is the acceptance length at least what the policy asks?
    acceptance_drift.py   does the acceptance length keep up while the engine answers more and more requests?
    speed.py              is speculation at least so many times as fast as the baseline it was paired with?
    since_green.py        is a cell no slower than in the last green run, but for a margin?
    builds.py             was this build compared with the branch that it goes into, and is it no slower?
    tail.py               is a percentile of the requests' times at most what the policy asks?
    memory.py             does speculation take no more memory and KV cache than the policy allows, and does none grow?
    load.py               does speculation pay up to a level of load, and does the server take every request?
    goodput.py            do enough of a server's requests keep to the scenario's latency limits?
    invariants.py         did every PERF_MODE invariant hold?
    quality.py            are as many questions answered rightly as without speculation, but for a margin?
    degeneracy.py         is the generated text mostly loops?
    sampled/              are texts that were drawn at a temperature the target's?
    environment.py        could the machine be trusted while this cell was measured?
    change.py             of two runs: is a figure of B no worse than that of A, but for a margin?
    same_tokens.py        of two runs: are B's tokens those of A?
    samples.py            verdicts that rest on pairs of blocks: which side of a floor, and what would settle it
    select.py             which cells a rule speaks of, and verdicts with its name on them
    policies/             policies that come with specgate; `contrast/` has those for two runs

They import the public rooms (`specgate.errors`, `contract`, `files`, `analysis`) and one another, and nothing else of
specgate. `docs/examples/gate-plugin` is a gate from outside.
"""
