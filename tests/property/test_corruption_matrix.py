"""Each corruption is caught by the rule meant for it: the matrix as recorded, and any family's rows."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from contracts import audit, write_shard
from contracts.formats import FORMATS
from contracts.records import Profile, Severity
from contracts.rules import RULES
from fixtures.corruptions import FILES, OPERATORS, SETS, matrix
from fixtures.corruptions.families import TURNS, codec_of, family_rows

SETTINGS = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    deadline=None,
)
ALL = [*OPERATORS.values(), *SETS.values(), *FILES.values()]


def test_every_rule_has_a_corruption_or_a_reason() -> None:
    meant = {operator.rule for operator in ALL}
    assert meant <= set(RULES), "an operator is meant for a rule that is not there"
    assert set(RULES) - meant == set(matrix.NOT_ALONE), (
        "add an operator for the rule, or say why there is none"
    )
    assert len({operator.name for operator in ALL}) == len(ALL)


def test_every_reported_fault_of_shards_has_a_corruption() -> None:
    """The reports of the fields that concern shards; each is told by at least one operator."""
    told = " ".join(operator.report for operator in ALL)
    reports = (
        *("TorchSpec#115", "TorchSpec#108", "speculators#835", "DeepSpec#29", "SpecForge resume"),
        *("Automodel#3738", "Megatron-Bridge#3359", "marin#7237", "Model-Optimizer#2049", "SpecForge#885"),
        *("Automodel#3024", "verl#785", "trl#6668", "SpecForge#429", "axolotl#3136", "datatrove#118"),
        *("transformers#2825", "DeepSeek-R1#151", "trl#6363", "NeMo-Skills#1390", "tokenspeed#1305"),
        *("speculators#1081", "SpecForge#76", "a public K2.5 data set", "verl#3960", "NeMo-Gym#1787"),
        *("NeMo-RL#2821", "miles#1117", "miles#1319", "trl#5224", "the seed case", "vllm#50258"),
        *("smg#1873", "sglang#24251", "sglang#35083", "sglang#39583", "sglang#34604", "sglang#12932"),
        *("sglang#10600", "sglang#23341", "sglang#23363", "vllm#46224"),
    )
    assert [report for report in reports if report not in told] == []


def test_the_matrix_is_what_is_recorded(tmp_path: Path) -> None:
    """Each operator fires the rule meant for it, as an error where it is one; what else fires is recorded."""
    missed: list[str] = []

    def hold(name: str, rule: str, fired: matrix.Fired) -> list[str]:
        wanted = RULES[rule].severity(Profile.DRAFT)
        if rule not in fired or (wanted is Severity.ERROR and fired[rule] is not Severity.ERROR):
            missed.append(f"{name}: {rule} did not fire, but {', '.join(fired) or 'none'}")
        return list(fired)

    measured: matrix.Matrix = {"rows": {}, "sets": {}, "files": {}}
    for operator, family in matrix.row_cases():
        fired = hold(
            f"{operator.name} of {family}", operator.rule, matrix.run_row(operator, family, tmp_path)
        )
        known = measured["rows"].setdefault(operator.name, [])
        known += fired
    for name, one in SETS.items():
        measured["sets"][name] = hold(name, one.rule, matrix.run_set(one, tmp_path))
    for name, file in FILES.items():
        measured["files"][name] = hold(name, file.rule, matrix.run_file(file, tmp_path))
    assert missed == []
    kept = {kind: {name: sorted(set(f)) for name, f in fired.items()} for kind, fired in measured.items()}
    assert kept == matrix.recorded(), "run `python -m fixtures.corruptions.matrix`, then `make docs`"


BY_ROWS = sorted(name for name, operator in OPERATORS.items() if operator.case == "answer")


@settings(SETTINGS, max_examples=50)
@given(data=st.data())
def test_any_row_of_any_family_spoiled_is_caught(tmp_path: Path, data: st.DataObject) -> None:
    """Whatever the family, the rows around it, their number and their order: its rule fires."""
    family = data.draw(st.sampled_from(sorted(FORMATS)), label="family")
    rows = copy.deepcopy(data.draw(st.permutations(family_rows(family)), label="order"))
    operator = OPERATORS[data.draw(st.sampled_from(sorted(OPERATORS)), label="operator")]
    assume(operator.fits(rows))
    kept = data.draw(st.integers(6, len(rows)), label="rows")
    # Operators look at the row after theirs, and at the one in Chinese.
    needed = {operator.case, "chinese"}
    rows = [row for n, row in enumerate(rows) if n < kept or row["conversation_id"] in needed]
    at = next(n for n, row in enumerate(rows) if row["conversation_id"] == operator.case)
    if at == len(rows) - 1:
        rows.insert(0, rows.pop())
    shard = write_shard(tmp_path / "a.parquet", operator(rows), format_name=family)
    found = {f.rule: f.severity for f in audit([shard], codec=codec_of(family)).findings}
    if operator.rule == "prompt-tail-differs" and operator.rule not in found:
        return  # few rows have no majority
    assert operator.rule in found, sorted(found)


@pytest.mark.parametrize("family", sorted(FORMATS))
@settings(SETTINGS, max_examples=2)
@given(data=st.data())
def test_an_id_of_any_family_flipped_dropped_or_doubled_is_caught(
    tmp_path: Path, family: str, data: st.DataObject
) -> None:
    """A writer that changes ids and tells text, counts and digests of the new ones is caught all the same."""
    from contracts.shard import seal

    rows = copy.deepcopy(family_rows(family, TURNS))
    at = data.draw(st.integers(0, len(rows) - 1), label="row")
    row = rows[at]
    ids = row["response_token_ids"]
    where = data.draw(st.integers(0, len(ids) - 1), label="token")
    kind = data.draw(st.sampled_from(["flip", "drop", "double"]), label="change")
    if kind == "flip":
        new = data.draw(st.integers(0, (codec_of(family).vocab_size or 1) - 1), label="id")
        assume(new != ids[where])
        ids[where] = new
    elif kind == "drop":
        del ids[where]
    else:
        ids.insert(where, ids[where])
    assume(ids)
    row["completion_tokens"] = len(ids)
    if row["text_source"] == "derived":
        row["response_text_raw"] = codec_of(family).decode_bytes(ids).decode("utf-8", "replace")
    rows[at] = seal(row)
    shard = write_shard(tmp_path / "a.parquet", rows, format_name=family)
    found = audit([shard], codec=codec_of(family)).findings
    errors = {f.row for f in found if f.severity is Severity.ERROR}
    assert errors == {at}, row["conversation_id"]
