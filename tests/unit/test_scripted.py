"""The processor that forces scripts: travels by value, never raises, exact while the scheduler runs ahead."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from harness.scripted import check_script, custom_params, processor_text

torch = pytest.importorskip("torch")
dill = pytest.importorskip("dill")


def _processor() -> Any:
    return dill.loads(bytes.fromhex(json.loads(processor_text())["callable"]))()


def _said(params: dict[str, Any] | None, vocab: int = 10, rows: int = 1, row: int = 0) -> int | None:
    """The token that the processor forces for one row, None when it leaves the logits alone."""
    logits = torch.arange(rows * vocab, dtype=torch.float32).reshape(rows, vocab)
    before = logits.clone()
    out = _processor()(logits, [None] * row + [params] + [None] * (rows - row - 1))
    others = [index for index in range(rows) if index != row]
    assert torch.equal(out[others], before[others])
    if torch.equal(out, before):
        return None
    probabilities = out[row].softmax(-1)
    assert probabilities.max() == 1.0
    return int(probabilities.argmax())


def test_the_server_needs_nothing_of_this_package() -> None:
    code = (
        "import json, sys\n"
        "sys.modules['harness'] = None; sys.modules['contracts'] = None\n"
        "import dill, torch\n"
        "made = dill.loads(bytes.fromhex(json.loads(sys.argv[1])['callable']))()\n"
        "class Req: output_ids = []; decode_batch_idx = 0\n"
        "params = json.loads(sys.argv[2]) | {'__req__': Req()}\n"
        "print(int(made(torch.zeros(1, 10), [params]).argmax()))\n"
    )
    params = json.dumps(custom_params([7, 3]))
    done = subprocess.run(
        [sys.executable, "-I", "-c", code, processor_text(), params],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.strip() == "7", done.stderr


def test_each_position_is_forced_whether_the_output_lags_or_not() -> None:
    script = [5, 6, 7, 8]
    for lag in (0, 1):
        params = custom_params(script)
        said = []
        for step in range(len(script)):
            known = script[: max(0, step - lag)]
            params["__req__"] = SimpleNamespace(output_ids=known, decode_batch_idx=step)
            said.append(_said(params))
        assert said == script


def test_a_retracted_request_goes_on_where_it_was() -> None:
    script = [5, 6, 7, 8]
    params = custom_params(script)
    said = []
    # Two tokens out, then the request is prefilled anew with them: decode steps count from zero again.
    for output, steps in (([], 0), ([5], 1), ([5, 6], 0), ([5, 6, 7], 1)):
        params["__req__"] = SimpleNamespace(output_ids=output, decode_batch_idx=steps)
        said.append(_said(params))
    assert said == script


def test_chunks_of_a_long_prompt_do_not_use_up_the_script() -> None:
    params = custom_params([5, 6])
    said = []
    for output, steps in (([], 0), ([], 0), ([], 0), ([5], 1)):
        params["__req__"] = SimpleNamespace(output_ids=output, decode_batch_idx=steps)
        said.append(_said(params))
    assert said[-2:] == [5, 6]


def test_after_the_script_comes_the_end_token_or_the_models_own_choice() -> None:
    req = SimpleNamespace(output_ids=[1, 2], decode_batch_idx=2)
    assert _said(custom_params([1, 2], end_id=4) | {"__req__": req}) == 4
    assert _said(custom_params([1, 2]) | {"__req__": req}) is None


def test_only_the_scripted_row_changes() -> None:
    req = SimpleNamespace(output_ids=[], decode_batch_idx=0)
    assert _said(custom_params([3]) | {"__req__": req}, rows=3, row=1) == 3


@pytest.mark.parametrize(
    "params",
    [
        None,
        {},
        {"__req__": None},
        custom_params([1]),
        {"__req__": SimpleNamespace(output_ids=[], decode_batch_idx=0), "shardgate_script": "no ids"},
        custom_params([99]) | {"__req__": SimpleNamespace(output_ids=[], decode_batch_idx=0)},
        custom_params([-1]) | {"__req__": SimpleNamespace(output_ids=[], decode_batch_idx=0)},
    ],
    ids=["none", "empty", "no request", "no req key", "not ids", "beyond the vocabulary", "negative"],
)
def test_whatever_comes_it_never_raises(params: dict[str, Any] | None) -> None:
    assert _said(params) is None


@pytest.mark.parametrize(
    ("ids", "why"),
    [([], "empty"), ([1, 10], "token 1 is 10, outside"), ([-1], "outside"), ([True], "is an int")],
)
def test_a_script_that_would_kill_the_server_is_refused(ids: list[int], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        check_script(ids, 10)


def test_a_good_script_passes() -> None:
    check_script([0, 9], 10)
