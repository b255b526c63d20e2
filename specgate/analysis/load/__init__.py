"""A server under load: figures of a level, and up to which level speculation pays.

figures.py         figures of load, and in words
sweeps.py          levels of load side by side
max_goodput.py     the greatest load at which latency limits hold
level_search.py    which levels it takes to find that, or the break-even
best_draft.py      the best draft length at every level
break_even.py      the ratios of a sweep → the level at which speculation stops paying, with its interval
"""
