"""A stored result judged by a policy that is asked for (`specgate runs check`).

result_file.py     a run folder or another tool's result, told by its content
benchmark_json.py  the benchmark JSON of the EAGLE-3 scripts and of `vllm bench serve`, read and checked
other_tools.py     results of tools that are not read, told by their keys
"""
