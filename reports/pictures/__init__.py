"""The pictures of the page: one module per question, each with its drawing, its words and its table.

forest        every speed-up of a run in one picture, beside what the policy asks of it
speed_map     batch × context × draft length: where does speculation pay?
speedups      the pairs of a point: how many times the baseline's speed
acceptance    how many drafts were accepted, and up to which position
cycle         where the time of a cycle goes, and what that makes of the acceptance length
depth         acceptance length and step time against how far a request has come
latency       how the times of single requests are spread
blocks        every block of a point in running order: drift, warm-up, outliers
machine       what the machine did while the pairs of a point were timed
svg           drawing: matplotlib to inline SVG, coloured by the page's style sheet
"""
