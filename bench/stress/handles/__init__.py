"""The cache of an engine, as stress needs it: read, held to its accounts, and damaged.

handle.py       what every handle can do
open.py         an engine of the back end that is asked for, and its handle
reference.py    of the reference engine: one row of positions per slot
cupy_eagle3.py  of the built-in engine: blocks, who owns them, and what lies in them
checksum.py     a sum of tensors that depends on every bit and on its place
"""
