"""Drawing tokens from rows of logits, between the LM head and the kernel that takes its choice. Each has a `.cu` of the
same name, but for `blocks.py`.

bias_rows.py   a bias on logits, and the greedy choice anew
weigh_rows.py  among which columns of about the same logit top-k or top-p ends
cut_rows.py    the last column that top-k, top-p and min-p leave
draw_rows.py   the draw: an exponential race with the numbers of request and position
blocks.py      how columns are divided among threads and blocks
"""
