"""Read stored runs, check them and lay them side by side. Nothing in their folders is written.

stored_runs.py           a run as it was left
tables.py                a run as pandas tables (`specgate.open_run`)
verification.py          a run checked against itself: its manifest, then every figure and table from the samples
recomputation.py         the run computed again, and where run.json, gates.json and env.json say anything else
report_comparison.py     differences between what a run stored and what is made anew
rendering.py             its reports: which file each becomes, and its text
comparing/               stored runs laid side by side (`specgate runs compare`)
history.py               a folder of runs → Trends (`specgate runs history`), and where figures changed
tape.py                  recorded acceptance of a run: its accept counts, to be replayed
policy_from_runs.py      a policy over that of runs, with floors that they prove (`specgate policy init`)
policy_from_results.py   a policy of floors that results of other tools keep (likewise)
other_tools/             results of other tools, by a declaration per tool
judging/                 a run folder or a result file, judged by a policy that is asked for (`specgate runs check`)
"""
