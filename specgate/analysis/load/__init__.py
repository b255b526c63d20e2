"""A server under load: figures of a level, and up to which level speculation pays.

figures.py         figures of load, and in words
sweeps.py          levels of load side by side
break_even.py      the ratios of a sweep → the level at which speculation stops paying, with its interval
"""
