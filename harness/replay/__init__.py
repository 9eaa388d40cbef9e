"""Replay: the model is asked whether it made the tokens that the rows hold (claim 5).

Place in the flow: after the shards, beside the audit; its result enters the certificate. Imports `contracts`,
`harness.client`'s neighbours and `harness.recording`; numpy inside functions.

    choose      which rows are asked about
    ask         one row's ids prefilled with logprobs
    expect      what sampling from the model would have given at each position
    scores      one row's numbers
    calibrate   thresholds learnt from reference rows, verdicts, tests of the set
    diagnose    why a row differs, found by trying
    run         the flow; `contracts.replayed` has the record's form
"""

from harness.replay.run import Plan, replay

__all__ = ["Plan", "replay"]
