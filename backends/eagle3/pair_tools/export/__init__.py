"""Pairs in the layouts of other engines: Hugging Face folders, speculators, GGUF.

command.py         `specgate engine export`: open, write, describe
opened.py          the pair that is exported, room for it, and how the result is started
hf.py              Hugging Face folders, the draft in the layout of the EAGLE authors or of speculators
gguf_model.py      metadata and tensors of a pair as GGUF
gguf_vocab.py      a `tokenizer.json` as the vocabulary of a GGUF file
differences.py     what is not the same about a pair once another engine runs it from an export
manifest.py        EXPORT.json: what an export was made of, and the hashes of its files
"""
