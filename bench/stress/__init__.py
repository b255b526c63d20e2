"""Stress for engines whose cache can be reached: thousands of cycles, every token held to plain decoding.

    python -m bench.stress --cycles 10000 --out FOLDER                   # built-in engine, planted 8B pair, a GPU
    python -m bench.stress --backend reference --pair tiny --slots 3 --positions 192 --context 101,128 \
        --new-tokens 16 --cycles 200 --out FOLDER                              # seconds on a CPU; CI runs its like

__main__.py    the command line
rounds.py      round after round until the cycles are spent; what it all comes to
playing.py     one episode: its text by plain decoding, by every draft length, and again
episodes.py    what a round asks: long and odd prompts, a full cache, ragged batches, slots that end, cache faults
expected.py    which part of a free text a request with stop tokens ends up with
memory.py      what is in use after each round, and whether it grows
handles/       the cache of an engine: its prompts' bytes, its accounts, and faults that can be put into it
tiny_pair.py   a planted pair that decodes in milliseconds on a CPU
"""
