"""Results of other tools: read, held against themselves, and put as cells. What each tool writes is a declaration.

declarations.py  a declaration per tool: keys → figures, counts of speculation, what was asked
reading.py       a file, or a folder of them → results
speculation.py   the acceptance length of a result, and contradictions between its counts and means
numbers.py       numbers of a result by their dotted paths
scripts.py       scenario and draft length by the names that `benchmark_speculative.py` gives
cells.py         results → a run with a cell per question and role; repetitions become one cell
"""
