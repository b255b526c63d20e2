"""Drawing tokens from rows of logits, between the LM head and the kernel that takes its choice. `launchers.py` launches
them.

bias_rows.cu   a bias on logits, and the greedy choice anew
weigh_rows.cu  among which columns of about the same logit top-k or top-p ends
cut_rows.cu    the last column that top-k, top-p and min-p leave
draw_rows.cu   the draw: an exponential race with the numbers of request and position
"""
