"""Scenarios, the points and cells that they span, and the plan of a run.

roles.py        the baseline, and speculation with a number of draft tokens
assets.py       pinned wheels that pairs and prompts are made of
pair.py         a pair, and RoPE scaling
workload.py     the grid, the prompts, and how long and how often blocks decode
own_prompts.py  a user's own prompts in words: chats or text, and what was left out
sampling.py     settings of sampling at a temperature
scenario.py     one question to an engine, with its variants
plan.py         points, cells, rounds and plans
"""
