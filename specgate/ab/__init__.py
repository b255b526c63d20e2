"""`specgate ab`: an old and a new build of an engine, measured in turns in one session, and judged.

session.py     the whole of it: request → sides → samples → words → files
request.py     the command line, and what it means on this machine
sides.py       which build a side is: a folder, a git revision, an interpreter, options
schedule.py    the order of everything, drawn before anything is measured
resuming.py    a stored comparison that goes on, with more process pairs
runner.py      the measuring loop: processes in pairs, blocks in groups A B B A
one_build.py   what all processes of a side, and both sides, must have in common
recording.py   its entry in the ledger
folder.py      the files of a comparison
judging.py     samples → findings, again at any later time
"""
