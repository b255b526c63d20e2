"""One run as text, a file per format.

console.py       tables on a terminal, and plain lines where there is none
explain.py       where the time of a cycle goes, and what follows for the gates (`specgate runs explain`)
csv.py           metrics.csv, one row per value, and summary.csv, one row per cell
benchmark_json.py  a file per cell in the form of `benchmark_speculative.py`, which older gates and dashboards read
junit.py         junit.xml
markdown.py      summary.md, for a comment or a step summary
annotations.py   workflow commands of GitHub Actions
"""
