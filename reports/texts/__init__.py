"""One run as text, a file per format.

console       tables on a terminal, and plain lines where there is none
explain       where the time of a cycle goes, and what follows for the gates (`specgate explain`)
csv           metrics.csv, one row per value, and summary.csv, one row per cell
junit         junit.xml
markdown      summary.md, for a comment or a step summary
annotations   workflow commands of GitHub Actions
"""
