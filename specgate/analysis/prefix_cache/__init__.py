"""The same requests with a server's prefix cache on and off, with and without speculation.

"""
