"""A user's own prompts: from a file to token ids.

records.py      the file, within bounds: JSON lines, a list in JSON, either of them compressed with gzip
formats.py      what a record means: specgate's own lines, and local copies of public data sets
trace.py        when requests were sent, and how long their answers were
chat.py         the tokenizer's chat template
choosing.py     which prompts are measured, in which sets, with which tokens
"""
