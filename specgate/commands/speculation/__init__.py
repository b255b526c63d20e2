"""Commands about speculation itself. None of them measures or judges.

    smoke.py        `specgate smoke`: is multi-token speculation active, and if not, why not?
    align.py        `specgate align`: two engines' speculative configs side by side
    acceptance.py   `specgate acceptance`: acceptance over all requests of stored runs

Importing a command imports nothing heavy; running it does.
"""
