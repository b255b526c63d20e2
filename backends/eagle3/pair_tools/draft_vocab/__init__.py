"""`specgate engine draft-vocab`: which target tokens a draft can propose, chosen from the tokens that really occur.

sources.py     token counts of prompt files, texts, corpora and stored runs
coverage.py    what each size of a vocabulary covers and costs
write.py       a draft with another vocabulary: its head, and its folder
command.py     all of it: count, choose, write
"""
