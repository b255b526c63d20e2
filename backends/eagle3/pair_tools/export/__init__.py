"""Pairs in the layouts of other engines: Hugging Face folders, speculators, GGUF.

command.py         `specgate engine export`: open, write, describe
opened.py          the pair that is exported, room for it, and how the result is started
hf.py              a pair as Hugging Face folders, and the manifest
gguf_model.py      metadata and tensors of a pair as GGUF
gguf_vocab.py      a `tokenizer.json` as the vocabulary of a GGUF file
differences.py     what is not the same about a pair once another engine runs it from an export
"""
