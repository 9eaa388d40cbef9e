"""Rows mended where the mending can be proven, and left alone everywhere else.

Place in the flow: after the audit, before the next one. Imports its own modules only; what is heavy inside
functions. `restore` finds the row that the stored digest was made of, `derive` derives anew what ids that a
second witness confirms determine, `assume` mends texts on request and marks them.
"""

from contracts.repair.assume import ASSUMPTIONS
from contracts.repair.run import RepairFault, RepairResult, repair

__all__ = ["ASSUMPTIONS", "RepairFault", "RepairResult", "repair"]
