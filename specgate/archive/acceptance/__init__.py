"""The requests of stored runs, to be summed up (`specgate acceptance`).

requests.py         stored runs → what was counted of every request, and an Acceptance
prompt_classes.py   the class of a prompt: its category in the user's file, else its kind of text
"""
