"""Certified rows into the files that trainers read, each export with a certificate that names its source.

Place in the flow: after the certificate, instead of the loader. Imports its own modules only; what is heavy
inside functions. `tokens` holds the forms with ids and mask, which are lossless; `texts` the conversations,
whose rendering is compared with the ids; `arrow` the parquet and Arrow containers.
"""

from contracts.exporters.run import FORMS, ExportFault, ExportResult, export_rows

__all__ = ["FORMS", "ExportFault", "ExportResult", "export_rows"]
