"""One module per command of `shardgate`.

Place in the flow: outermost. At the top each imports click and light modules only; what is heavy (torch,
sglang, transformers, polars, pandera, rich) is imported when its command runs, so that `--help` is quick.
"""
