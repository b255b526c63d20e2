"""Pages on several runs. The first five are choices of `specgate runs compare --by`.

builds.py        two runs: every figure, what changed, and the verdicts
engines.py       engines side by side
acceptance.py    acceptance over many requests, by engine, class of prompts and more
variants.py      roles and variants, with what each gives and what it changes
differences.py   in what two runs differ besides their figures
parity.py        `specgate diagnose parity`: two engines stage by stage
two_builds.py    `specgate ab`: an old and a new build of an engine
trends.py        figures over a history, with their chart
"""
