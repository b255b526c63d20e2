"""Intervals and decisions of a run's speed: statistics 2 and 3 of a scenario. Statistics 1 is in `analysis/stats.py`.

    levels.py            how much error a decision may have, and how interim looks and cells share it
    autocorrelation.py   the standard error of a mean whose pairs may resemble their neighbours
    slope.py             the slope of a figure over time, with the same allowance
    between_runs.py      what differs from process to process and from machine to machine, which no single run can see
    decision.py          the interval of both, and which look decides
    power.py             how small a difference a plan can tell

`docs/statistics.md` has the reasons and the simulated error rates.
"""
