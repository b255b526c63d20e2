"""Commands about speculation itself. None of them makes a run folder, and none but `cache` judges.

    smoke.py        `specgate smoke`: is multi-token speculation active, and if not, why not?
    align.py        `specgate align`: two engines' speculative configs side by side
    parity.py       `specgate parity`: at which stage does an engine first depart from another?
    tree_picture.py the same, drawn
    cache.py        `specgate cache`: does speculation keep a server's prefix cache of use?
    options.py      options of those that load an engine for one prompt

Importing a command imports nothing heavy; running it does.
"""
