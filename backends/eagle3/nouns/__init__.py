"""Values that cross a wall inside this house.

abilities.py     what a back end may be able to do for this house's commands: tuning, benches
gemms.py         matrix products: shapes, and the configurations found
fmha.py          knobs of attention, and the sweeps that found the best
kernel_bench.py  what timing single kernels asks and finds
trees/           draft trees: shapes, files, sizes
"""
