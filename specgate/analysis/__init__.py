"""From samples to figures and states: pure functions, so that a stored run gives the same answer at any later time.

    reduce.py               blocks → cells and comparisons: the entry point
    rounds.py               which blocks may be judged: those of rounds that one engine process ran whole
    grouping.py             things by what they have in common
    checks/                 what records must satisfy before a figure is quoted: identities, clocks, floors
    references.py          a run beside an earlier one that it is compared with
    two_builds/             samples of two builds of an engine → quantities and words
    tokens/                 are the tokens right: the baseline's, a second engine's choice, and no loops
    draws/                  texts drawn at a temperature: do they have the target's distribution?
    prompt_acceptance.py    acceptance of a cell, with intervals over prompts
    paired_blocks.py        spec blocks beside the baseline blocks they were paired with: tokens and speed
    stats.py                intervals for mean log-ratios, interim looks, and when such an interval decides
    intervals/              what a run may say of a speed: between runs, and where neighbouring pairs are alike
    rows.py                 blocks, requests and verdicts of a run as rows of tables
    block_figures.py        the figures of single blocks
    cell_figures.py         those of a cell
    load/                   a server under load: figures of a level, and up to which level speculation pays
    requests/               times of single requests: percentiles with intervals, goodput, how they are spread
    cycle_accounting.py     where the time of a cycle goes: cycle budgets
    experts.py             what a mixture of experts costs: experts touched, and how far neighbours share them
    speedup_limits.py       how fast a pair could be here, and what acceptance length a gate would take
    waterfall.py            a measured speed-up as a product of what it is made of
    perf_invariants/        PERF_MODE: seven invariants of a decode loop, judged from a profiler's trace
    traces/                 traces that a profiler wrote into a file: torch profiler, nsys
    machine/                what the machine did while each point was measured, and which rounds it disturbed
    environment_diff.py     what differs between two records of an environment
    parity/                 two engines' stages for one prompt: how far apart, and which departs first
    quality/                exact-match scores of answers, baseline beside speculation
    prefix_cache.py        a prefix cache on and off, with and without speculation
    speculation/            is speculation active, and if not, why not; its acceptance over many requests
    variation.py            what differs in a variant of a role, in words
    cell_names.py           names of cells as a person would say them
    verdict.py              many verdicts → one state and one exit code

Stable for gates and reports from outside, as the built-in ones use them: `stats`, `environment_diff`, `rows` and
`verdict`. The other files are what `reduce` is made of; their results reach a plug-in as fields of `contract.Run`.
"""
