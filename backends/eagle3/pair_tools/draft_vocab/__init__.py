"""`specgate engine draft-vocab`: which target tokens a draft can propose, chosen from the tokens that really occur.

sources.py     token counts of prompt files, texts, corpora and stored runs
coverage.py    ranking of tokens by count, coverage of the first n, and the tail that is never drafted
cost.py        what an LM head of n rows reads per draft step and per cycle
write.py       a draft with another vocabulary: its head, and its folder
command.py     all of it: count, choose, write
"""
