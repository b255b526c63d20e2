"""Pairs in the layouts of other engines: Hugging Face folders, speculators, GGUF, TurboMind.

command.py         `specgate engine export`: open, write, describe
opened.py          a pair that is to be exported: its configs understood, its tensors checked and unread
room.py            whether an export may be written where it is asked for
hf.py              Hugging Face folders, the draft in the layout of the EAGLE authors or of speculators
turbomind.py       a draft in TurboMind's layout
gguf_model.py      GGUF files for llama.cpp
gguf_vocab.py      a `tokenizer.json` as the vocabulary of a GGUF file
differences.py     what is not the same about a pair once another engine runs it from an export
starting.py        the commands that start each engine with an export
"""
