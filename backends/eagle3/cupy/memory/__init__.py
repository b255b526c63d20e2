"""Arrays in the GPU's memory.

sizes.py           sizes of an engine, and the layout of prompts in its cache
model.py           weights and tables of a pair, in the form that the kernels want
sampling.py        what drawing tokens needs
buffers.py         everything else that a captured graph reads and writes
peers.py           where the GPUs that share a target write to each other
trees.py           a draft tree's topology, and what its kernels hand on
partial.py         what verification over a part of the cache keeps
coded_pages.py     keys and values as codes in a cache's pages, and back, by torch
"""
