"""Intervals and decisions of a run's speed: statistics 2 and 3 of a scenario. Statistics 1 is in `analysis/stats.py`.

    decision.py          decisions by intervals, their levels, and their power
    autocorrelation.py   the standard error of a mean whose pairs may resemble their neighbours
    slope.py             the slope of a figure over time, with the same allowance
    other_prompts.py     the interval on prompts like those measured, and the names of the two questions
    rounding.py          figures told from the bound that they are held to
    between_runs.py      what differs from process to process and from machine to machine, which no single run can see

`docs/statistics.md` has the reasons and the simulated error rates.
"""
