"""A stored result judged by a policy that is asked for (`specgate runs check`).

result_file.py    a run folder or a run.json, told by its content
other_results.py  results of other tools
"""
