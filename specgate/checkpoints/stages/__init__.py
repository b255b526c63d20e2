"""The stages of a forward pass at which two engines can be compared, tensor by tensor.

    names.py    every stage by name: which part it belongs to, its width, and where in the pass it is taken
    dump.py     the tensors of one engine and one prompt: what must hold of them
    file.py     such a dump as a safetensors file, read strictly and written

`docs/engine.md` shows the stages as a table, with their names in other engines.
"""
