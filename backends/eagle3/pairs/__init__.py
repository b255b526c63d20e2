"""The pairs that come with this engine.

shipped.py          the pairs that come with this engine
demo_draft/         the weights of that draft, and its model card
planted/            the configs of the planted pairs that ship; their weights follow from a seed
gguf_file.py        metadata, layout and tokenizer of a GGUF file
gguf_convert.py     such a file made into a Hugging Face folder
gguf_tokenizer.py   its tokenizer as a `tokenizer.json`
whole_folder.py     a folder that appears whole or not at all
"""
