"""Benchmarks: data made on the spot, and the audit's cost as ratios to the scan of the same columns.

Place in the flow: beside the tests; not installed. `docs/speed.md` has what was measured and the command.

The libraries read their number of threads when they are imported, so it is set here, before any of them.
"""

import os

os.environ.update(dict.fromkeys(("POLARS_MAX_THREADS", "RAYON_NUM_THREADS", "OMP_NUM_THREADS"), "1"))
