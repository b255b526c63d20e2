"""The pictures of pages: one module per question, each with its drawing, its words and its table.

forest.py        every speed-up of a run in one picture, beside what the policy asks of it
load.py          a server under load: where speculation stops paying, throughput against latency
acceptance.py    how many drafts were accepted, and up to which position
uptime.py        acceptance against the requests that the engine had answered
cycle.py         the budget of a cycle, and its experts
latency.py       how the times of single requests are spread
machine.py       what the machine did while the pairs of a point were timed
effects.py       changes from one run or build to another, each with its interval and the margin that is let through
svg.py           drawing: matplotlib to inline SVG, coloured by the page's style sheet
"""
