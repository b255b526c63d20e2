"""Compare a run with a reference: what both share, and what differs. Pure.

cell_times.py   blocks → what a later run is held against
earlier_run.py  a cell beside the same cell of an earlier run: times by rounds, acceptance by prompts
"""
