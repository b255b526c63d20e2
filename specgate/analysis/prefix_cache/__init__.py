"""The same requests with a server's prefix cache on and off, with and without speculation.

samples.py  what was asked, and what came back
checks.py   is as much reused with speculation, does it save as much time, and are the texts the same?
"""
