"""`specgate diagnose parity`: two engines, or an engine and a file, held against each other stage by stage.


What is made of them is pure: `specgate.analysis.parity`.
"""
