"""Every kernel of a step by itself: what it must move, how long it takes, and what others take.

run.py           the benchmark: record a step, group its launches, and time each of its kernels
stage.py         a step in the middle of decoding, to be recorded and repeated
synthetic.py     a pair of any geometry with random weights
accounts.py      the bytes that each launch must move
oracles.py       the products of experts in float64, for the search and the tests
peers.py         libraries that do the same work
timing.py        how fast memory can be read, and how long a launch takes
"""
