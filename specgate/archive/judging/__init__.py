"""A stored result judged by a policy that is asked for (`specgate runs check`).

run_folder.py     a run, computed anew
other_results.py  results of other tools
"""
