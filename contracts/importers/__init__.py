"""Data from elsewhere into shards, under the strength that it can bear.

Place in the flow: before the audit, instead of a capture. Imports its own modules only; what is heavy inside
functions. One module a source: `conversations` (SpecForge's regeneration output, TorchSpec, ShareGPT, EAGLE,
Automodel, Model-Optimizer: texts, no ids), `speculators` (ids and mask).
"""

from contracts.importers.base import ImportOptions, ImportResult, Refused
from contracts.importers.run import SOURCES, import_files

__all__ = ["SOURCES", "ImportOptions", "ImportResult", "Refused", "import_files"]
