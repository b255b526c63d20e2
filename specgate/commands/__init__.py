"""The commands: options, and what is called with them. `specgate.cli` puts them together.

    door.py         groups that commands of plug-ins can join
    demo.py         `demo`: two scripted engines, judged like any other
    smoke.py        `smoke`: is multi-token speculation active, and if not, why not?
    run.py          `micro`, `full` and `load`: measure an engine, here or on many machines, and judge it
    status.py       `full --status`: how far the micro gates are
    ab.py           `ab`: an old and a new build of an engine in one session
    runs/           `runs`: show, verify, check, compare, history, explain, report, pin
    diagnose/       `diagnose`: configs, parity, cache, trace, pair
    machine/        `machine`: doctor, calibrate, selftest, backends
    scenarios.py    `scenarios`: list, show, check, plan
    policy.py       `policy`: floors for the scenarios of measured runs, and a policy with all that it inherits
    engine.py       `engine`, whose other commands are those of plug-ins, and `engine pairs`
    sweep.py        `engine sweep`: settings of an engine, and the one that is faster than the default
    options.py      options of the commands that load an engine for one prompt
    servers.py      the URLs of servers as an argument
    numbers.py      numbers on the command line: bounded, and finite
    output.py       options of the commands that render stored runs, and where their files go

Importing a command imports nothing heavy; running it does.
"""
