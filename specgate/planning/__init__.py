"""Planning: from the command line and YAML files to a plan of blocks.

request.py          the command line of a run, parsed but not yet understood
resolution.py       what it means on this machine, or what an earlier run has fixed
defaults.py         what a command line leaves out: its policy, and what a first run measures
attached_servers.py servers named by their URLs → the options that say the same
scenario.py         scenario YAML → `contract.Scenario`
contradictions.py   values of a scenario that are right alone and contradict each other
ad_hoc.py           a question asked on the command line, without a YAML file → a scenario with a name of its own
forced_acceptance.py  an earlier run's acceptance length, forced in this one
inheritance.py      a YAML file merged over those that it names
policy.py           policy YAML → `contract.Policy`: which gate judges which cells, with which numbers
gates.py            what the gates of a policy declare: what they judge and need
rule_names.py       rules that select nothing, since nothing has their names
prompts.py          the prompt sets of a point: real text of exactly the asked length, or a user's own
prompt_files/       a user's own prompts, and local copies of public data sets
arrivals.py         when the requests of a server under load are sent
plan.py             scenarios → `contract.Plan`: every block in running order, and how long it will take
"""
