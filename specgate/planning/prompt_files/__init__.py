"""A user's own prompts: from a file to token ids.

records.py      the file, within bounds: JSON lines, a list in JSON, either of them compressed with gzip; Parquet
fields.py       one record: its keys, and what it can mean
conversations.py  turns of a conversation: the first question, and those behind it
formats.py      what a record means: specgate's own lines, and local copies of public data sets
trace.py        when requests were sent, and how long their answers were
choosing.py     which prompts are measured, in which sets, with which tokens
"""
