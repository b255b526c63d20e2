"""The machine that is measured on. Nothing about it is changed.

    inventory.py         what this run happens on: host, packages, source tree, GPUs
    checkout.py          the git checkout that a folder lies in
    software.py          what a run rests on: source tree, interpreter, packages, CUDA, plug-ins from outside
    packages.py          versions of interpreter, packages and CUDA, from metadata
    plugin_code.py       the files of plug-ins from outside, and a hash over them
    nvml.py              one GPU through NVML
    cpu_pace.py          how fast a CPU works: the CPU time of a fixed piece of work
    host.py              which host this is, how much of its CPUs others use, and whose a process is
    memory_in_use.py     how much memory the processes of an engine hold, on the host and on the GPU
    process_tree.py      the processes that a process has started
    cpu_counters.py      the kernel's counters of CPU time around one block
    monitor.py           samples of host and GPU while a run goes on, taken by a process of its own
    doctor.py            is this machine fit to measure on?
    noise_profile.py     what this machine can tell apart, from runs of the same role in both places of every pair
    bandwidth.py         the read bandwidth of its memory: measured once, stored, used by every later run

Stable for engines from outside, as the built-in one uses them: `inventory` (which GPUs there are) and `tuned_gemms`
(tuned configurations). The rest serves the harness and may change.
"""
