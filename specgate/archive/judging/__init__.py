"""A stored result judged by a policy that is asked for (`specgate runs check`).

run_folder.py      a run folder: figures and verdicts computed from its samples by the rules of another policy
result_file.py     a run.json with the figures that it has, or another tool's benchmark JSON
benchmark_json.py  the benchmark JSON of the EAGLE-3 scripts, read and checked
"""
