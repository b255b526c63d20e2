"""A sandbox for engines: bubblewrap, and what a process inside sees.

bubblewrap.py the command line of the program that makes it
view.py       paths that a process inside sees, may write, or does not see
box.py        one process in a sandbox: its private home folder, its start, its end as a whole
isolation.py  `--isolate`: the sandbox, tried once, and used for every engine of a command
probe.py      the program that tries a sandbox from inside
"""
