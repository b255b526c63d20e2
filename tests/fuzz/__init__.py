"""Fuzzing: odd input to everything that reads a file or an argument. Nothing that is read is executed.

mutation.py        Hypothesis strategies: a valid document with odd keys, values and bytes
seeds.py           the valid documents: small, and written by specgate itself where it writes such files
targets/           what is fuzzed: a reader, its documents, and the exit codes that it may end with
attempt.py         one input to one target, and what is wrong with how it ended
__main__.py        `python -m tests.fuzz --inputs 100000`: many inputs, a time limit for each, and a table
test_targets.py    what the ordinary suite runs: every kept input, then new ones
corpus/            inputs that once ended badly, by target; replayed first
"""
