"""Conditions that the raw records of a run must meet before a figure may be quoted.

    contradictions.py   all checks over the cells of a run: which cells contradict themselves, and why
    identities.py       identities of counts, and the ends of texts
    drafting.py         request-steps with fewer drafts than K, and acceptance lengths that they inflate
    experts.py          experts touched, against what routing allows
    repeats.py          accept counts of the same prompt in several rounds
    served.py           the same for engines behind a server, which show requests but no steps; and figures of these
    pace.py             a server's counters and clocks against the chunks that it streamed
    clocks.py           the engine's clock against the harness's, and step times against the whole
    floors.py           step times against what memory allows
    verification.py     speed-ups against the tokens that a step emits, and timed steps against untimed ones

Pure: the same blocks, budget and engine facts give the same answer, so that a stored run is judged again offline.
"""
