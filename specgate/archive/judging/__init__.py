"""A stored result judged by a policy that is asked for (`specgate runs check`).

result_file.py     a run folder or another tool's result, told by its content
benchmark_json.py  the benchmark JSON of the EAGLE-3 scripts, read and checked
"""
