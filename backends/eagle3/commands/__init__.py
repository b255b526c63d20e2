"""Commands that join specgate's.

    bench.py         `specgate engine bench`: how fast are the parts of an engine, each on its own?
    tree.py          `specgate engine tree inspect`: what a draft tree is, and what it takes
    tune/            `specgate engine tune`: what is fastest on this GPU?
    tape.py          `specgate engine tape`: record the accept counts of a run
    pairs/           `specgate engine pairs …`: train, plant, check and export pairs, choose a draft's vocabulary

Importing a command imports nothing heavy; running it does.
"""
