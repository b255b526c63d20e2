"""Pairs in the layouts of other engines: Hugging Face folders, speculators, GGUF."""
