"""The one base of every error that a user meets.

Place in the flow: the root, beside the records. Imports the standard library only.

    ShardgateError                 what, where, why, remedy: printed without a traceback, exit code 2
        each module's own types    one per boundary, so that a caller can tell them apart
"""

from __future__ import annotations


class ShardgateError(Exception):
    """A wrong use or a fault of the environment, told so that the reader can act.

    `what` happened, `where` (a file, a URL, a row), `why`, and the `remedy`. All are plain text for one
    reader; only `what` is needed.
    """

    def __init__(self, what: str, where: str = "", why: str = "", remedy: str = "") -> None:
        super().__init__(what, where, why, remedy)
        self.what = what
        self.where = where
        self.why = why
        self.remedy = remedy

    def __str__(self) -> str:
        parts = [self.what]
        if self.where:
            parts.append(f"where: {self.where}")
        if self.why:
            parts.append(f"why: {self.why}")
        if self.remedy:
            parts.append(f"remedy: {self.remedy}")
        return "\n".join(parts)
