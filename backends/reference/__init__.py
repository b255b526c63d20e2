"""EAGLE-3 in plain torch: the oracle of every other engine, and the default engine where there is no GPU."""
