"""Words, tables and figures that all renderers share.

figures.py        figures as text, and floors
summary.py        what every report says first: state, reason, and the command that repeats the run
tables.py         a run as rows: cells, comparisons, verdicts and their evidence
token_checks.py   how far tokens were checked beside the timed blocks
machine.py        what the machine did to the times: rounds set aside, clocks of a GPU
memory.py         memory in use, and what speculation adds to it
variants.py       variants of a role beside the plain role
own_prompts.py    prompts from a file: which, how long, acceptance by category
parts.py          Table, Entry and Picture: what a page is made of
provenance.py     what a run was made with: commit, device, driver
answer.py         the answer in words, what decided it, and which of two verdicts counts
latencies.py      TTFT, TPOT and ITL of requests, throughput and errors
"""
