"""What is shown of several runs, a file per command.

contrast.py      `specgate compare`: two runs
differences.py   in what two runs differ besides their figures
matrix.py        `specgate bench`: the same cells on several back ends
acceptance.py    `specgate acceptance`: acceptance over many requests, by engine, class of prompts and more
tradeoff.py      `specgate tradeoff`: roles and variants, with what each gives and what it changes
agreement.py     `specgate agree`: texts and acceptance of several engines beside the reference's
parity.py        `specgate parity`: two engines stage by stage
two_builds.py    `specgate ab`: an old and a new build of an engine
trends.py        `specgate history`: figures followed over runs
trend_chart.py   one figure over runs, drawn
"""
