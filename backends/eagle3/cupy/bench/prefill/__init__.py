"""A prefill part by part: what each must compute and move, whether it is right, and how long it takes.

run.py     the benchmark: check and time each part at each length, and the whole
stage.py   a random pair, a prompt's operands, and each part on them in every way that is known
floors.py  operations and bytes of each part, from the geometry
timing.py  how long a part takes, and the GPU's clock and power meanwhile
"""
