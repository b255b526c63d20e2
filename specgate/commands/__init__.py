"""The commands: options, and what is called with them. `specgate.cli` puts them together.

    demo.py         `specgate demo`: two scripted engines, judged like any other
    run.py          `specgate micro` and `specgate full`
    fleet/          `specgate fleet`: `micro` and `full` on many machines
    status.py       `specgate status`: how far the micro gates are
    doctor.py       `specgate doctor`: is this machine fit to measure on?
    calibrate.py    `specgate calibrate`: what can this machine tell apart?
    backends.py     `specgate backends`: the engines that can be measured
    door.py         groups that commands of plug-ins can join
    speculation/    `specgate smoke`, `align`, `parity`, `cache`: speculation itself
    scenarios.py    `specgate scenarios` and `specgate plan`
    policy.py       `specgate policy`: floors for the scenarios of measured runs, and a policy with all that it inherits
    pairs.py        `specgate pairs`: list and fetch; plug-ins add to it
    ab.py           `specgate ab`: an old and a new build of an engine in one session
    report.py       `specgate report`: the reports of stored runs, rendered anew
    explain.py      `specgate explain`: where the time goes, and what the gates would take
    verify.py       `specgate verify` a run, and `specgate check` a result file
    compare.py      `specgate compare`: stored runs side by side
    history.py      `specgate history`: figures over the runs of a folder
    trace/          `specgate trace`: what a profiler's trace says of a decode loop
    selftest.py     `specgate selftest`: faults that the judge must see
    numbers.py      numbers on the command line: bounded, and finite
    output.py       what the commands that render stored runs share: options, and where their files go

Importing a command imports nothing heavy; running it does.
"""
