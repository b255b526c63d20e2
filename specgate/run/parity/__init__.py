"""`specgate diagnose parity`: two engines, or an engine and a file, held against each other stage by stage.

    sides.py     a side as it is named on the command line: an engine with what differs for it, or a file
    stages.py    the stages of a side: read from its file, or shown by its engine

What is made of them is pure: `specgate.analysis.parity`.
"""
