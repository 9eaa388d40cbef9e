"""Benchmarks: data made on the spot, and the audit's cost as ratios to the scan of the same columns.

Place in the flow: beside the tests; not installed. `docs/speed.md` has what was measured and the command.
"""
