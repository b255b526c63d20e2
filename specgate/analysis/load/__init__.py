"""A server under load: figures of a level, and up to which level speculation pays.

figures.py         blocks of one cell → throughput, requests in flight, refused requests
sweeps.py          levels of load side by side
break_even.py      the ratios of a sweep → the level at which speculation stops paying, with its interval
phrases.py         what a sweep found, in words
"""
