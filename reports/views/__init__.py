"""Pages on several runs. The first three are choices of `specgate runs compare --by`.

builds.py        two runs: every figure, what changed, and the verdicts
engines.py       engines side by side
acceptance.py    acceptance over many requests, by engine, class of prompts, context and draft position
differences.py   in what two runs differ besides their figures
two_builds.py    `specgate ab`: an old and a new build of an engine
trends.py        figures over a history, with their chart
"""
