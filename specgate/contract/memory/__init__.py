"""What an engine holds in memory.

held.py    the memory behind a block: as the engine tells it, and as the harness reads it
"""

from specgate.contract.memory.held import EngineMemory, MemoryUse

__all__ = ["EngineMemory", "MemoryUse"]
