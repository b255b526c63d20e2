"""Requests of an engine's blocks: prompts as token ids, as text or as messages.

requests.py      prompts → requests, and the tokens that a server must have read of each
chats.py         messages for a chat end point, and what its chat template must make of them
"""
