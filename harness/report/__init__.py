"""Reports: they show results and compute none.

Place in the flow: last. May import `contracts` and `harness.outcomes`; rich and jinja2 inside functions only.
"""
