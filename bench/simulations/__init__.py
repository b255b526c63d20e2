"""How often judgements err, by simulation: what docs quote, a script each (`python -m bench.simulations.…`)."""
