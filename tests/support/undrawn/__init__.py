"""`python -m tests.support.undrawn ARGUMENTS`: what `python -m specgate` does, in a process that draws no picture.

    __main__.py   the command line, with outlines in the place of pictures

Importing matplotlib and drawing take half of the CPU time of a small run. A package, since processes that a run starts
do not import its `__main__` again.
"""
