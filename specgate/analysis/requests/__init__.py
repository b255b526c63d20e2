"""Times of single requests, as the field defines them (docs/definitions.md).

    timing.py          a block → its requests, each on its own clock
    percentiles.py     a percentile with an interval from order statistics, for samples that come in groups
    figures.py         figures of requests, and their distributions
    joint_decoding.py  the part of a batch's decoding in which every request decodes
    arrivals.py        a server's arrivals as steps: their time, and the acceptance of each request
    goodput.py         how many requests kept to the scenario's latency limits

A *quantity* is one of `contract.metrics.PER_REQUEST`. Its samples depend on each other within a block, not between
blocks.
"""
