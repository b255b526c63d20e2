"""A sandbox for engines: programs that are there already, and what a process inside sees.

kinds.py      command lines: bubblewrap, else podman, else systemd-run
view.py       paths that a process inside sees, may write, or does not see
box.py        one process in a sandbox: its private home folder, its start, its end as a whole
isolation.py  `--isolate`: the sandbox that is chosen, tried once, and used for every engine of a command
probe.py      the program that tries a sandbox from inside
"""
