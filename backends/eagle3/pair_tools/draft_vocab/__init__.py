"""`specgate engine draft-vocab`: which target tokens a draft can propose, chosen from the tokens that really occur.

sources.py     token counts of prompt files, texts, corpora and stored runs
coverage.py    ranking of tokens by count, coverage of the first n, and the tail that is never drafted
cost.py        what an LM head of n rows reads per draft step and per cycle
head.py        the rows of the LM head of the chosen tokens
write.py       the draft's folder with another vocabulary, its card and its record
command.py     all of it: count, choose, write
"""
