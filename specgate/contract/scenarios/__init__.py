"""Scenarios, the points and cells that they span, and the plan of a run.

roles.py       the baseline, and speculation with a number of draft tokens
pair.py        the checkpoints that are measured, and where their acceptance comes from
workload.py    the grid, the prompts, and how long and how often blocks decode
sampling.py    settings of sampling at a temperature
rope.py        RoPE scaling of a target
scenario.py    one question to an engine, with its variants
plan.py        points, cells, rounds and plans
"""
