"""Tests whose outcome does not depend on how fast the machine is, or whether it stands still meanwhile.

scripted_time.py   the clock of a run on a scripted engine in this process
starved.py         a run in processes of its own, made again where it got no CPU
"""
