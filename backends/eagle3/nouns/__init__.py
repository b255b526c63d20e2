"""Values that cross a wall inside this house.

abilities.py     what a back end may be able to do for this house's commands: tuning, benches
gemms.py         shapes of matrix products, and the configurations found for them
tuned_gemms.py   files of shapes and of tuned configurations
fmha.py          knobs of attention, and how its tiles were used
kernel_bench.py  what timing single kernels asks and finds
"""
