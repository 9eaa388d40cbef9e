"""The run's lock is the one of every folder that is written: see `contracts.held`.

Place in the flow: under the runner. Imports `contracts.held`.
"""

from contracts.held import FolderLock, LockLost

__all__ = ["FolderLock", "LockLost"]
