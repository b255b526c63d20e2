"""A server under load: figures of a level, and up to which level speculation pays.

figures.py         blocks of one cell → throughput, requests in flight, refused requests
send_delays.py     how late the client sent what was due, and when that is too late
sweeps.py          which cells make up a sweep, and its break-even
break_even.py      the ratios of a sweep → the level at which speculation stops paying, with its interval
text_selection.py  which texts are compared with the baseline's
phrases.py         what a sweep found, in words
"""
