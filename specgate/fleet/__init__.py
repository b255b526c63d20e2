"""One run on many machines: each point whole on one of them, one run folder and one entry of the ledger at the end.

session.py      the whole of it: who measures, what is refused, and a run like every other in the end
coordinator.py  hands tasks out, takes the samples of each point in, tries again what was lost
tasks.py        what is handed out and what comes back: points, the samples of points
machines.py     machines, and whether they are alike
local.py        the GPUs of this host, or shares of its CPUs; needs nothing else
ray_cluster.py  the GPUs or CPUs of a Ray cluster's hosts
measuring.py    one task, measured on this machine
merging.py      the samples of a task become the run's own
"""
