"""The certificate's form: real ones fit the schema, each field of the schema is told in the docs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from contracts import CertificateAltered, verify
from contracts.certificate import faults, json_schema, read_certificate, seal_of
from contracts.deriving import Derivation, derive
from tests.bodies.certified import certified_set

PAGE = Path(__file__).resolve().parents[2] / "docs" / "certificate.md"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A set with a quarantine, and one derived from it."""
    source = certified_set(tmp_path_factory.mktemp("source"), 2, bad=True)
    derived = tmp_path_factory.mktemp("derived")
    derive([source], derived, Derivation(shuffle=True, rows=5))
    return {"audited": source, "derived": derived}


def fields(schema: Any) -> Iterator[str]:
    """Every property that the schema names, at whatever depth."""
    if isinstance(schema, dict):
        for key, value in schema.items():
            if key == "properties":
                yield from value
            yield from fields(value)
    elif isinstance(schema, list):
        for item in schema:
            yield from fields(item)


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(json_schema())


@pytest.mark.parametrize("name", sorted(set(fields(json_schema()))))
def test_each_field_is_documented(name: str) -> None:
    assert f"`{name}`" in PAGE.read_text(encoding="utf-8")


def test_every_object_of_the_schema_is_closed() -> None:
    """A field that nobody documented can't slip in."""

    def open_objects(schema: Any, at: str = "$") -> Iterator[str]:
        if isinstance(schema, dict):
            if "properties" in schema and "if" not in at and schema.get("additionalProperties") is not False:
                yield at
            for key, value in schema.items():
                yield from open_objects(value, f"{at}.{key}")

    assert list(open_objects(json_schema())) == []


@pytest.mark.parametrize("kind", ["audited", "derived"])
def test_real_certificates_fit_and_are_in_toto_statements(folders: dict[str, Path], kind: str) -> None:
    whole = json.loads((folders[kind] / "certificate.json").read_text())
    assert faults(whole) == [] and set(whole) == {"_type", "subject", "predicateType", "predicate"}
    assert whole["_type"] == "https://in-toto.io/Statement/v1"
    assert all(set(subject["digest"]) == {"sha256"} for subject in whole["subject"])
    predicate = whole["predicate"]
    assert predicate["version"] and predicate["checkedBy"]
    assert datetime.fromisoformat(predicate["checkedAt"]).tzinfo is not None
    assert (
        predicate["counts"]["rows"] == predicate["counts"]["certified"] + predicate["counts"]["quarantined"]
    )
    assert ("derivation" in predicate) == (kind == "derived")


def changed(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield (path, other value) for every leaf of a JSON value."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from changed(item, (*path, key))
    elif isinstance(value, list):
        for place, item in enumerate(value):
            yield from changed(item, (*path, place))
    else:
        yield path, value + 1 if isinstance(value, int) else f"{value}x"


@pytest.mark.parametrize("kind", ["audited", "derived"])
def test_no_value_can_be_edited(folders: dict[str, Path], tmp_path: Path, kind: str) -> None:
    text = (folders[kind] / "certificate.json").read_text()
    places = list(changed(json.loads(text)))
    assert len(places) > 60
    for path, other in places:
        whole = json.loads(text)
        at = whole
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = other
        (tmp_path / "certificate.json").write_text(json.dumps(whole))
        with pytest.raises(CertificateAltered):
            read_certificate(tmp_path)


@pytest.mark.parametrize("name", ["kept", "sources", "leftOut"])
def test_a_derived_sets_counts_are_held_together_though_sealed_again(
    folders: dict[str, Path], tmp_path: Path, name: str
) -> None:
    whole = json.loads((folders["derived"] / "certificate.json").read_text())
    whole["predicate"]["derivation"]["rows"][name] += 1
    whole["predicate"]["sha256"] = seal_of(whole)
    (tmp_path / "certificate.json").write_text(json.dumps(whole))
    with pytest.raises(CertificateAltered, match="altered"):
        read_certificate(tmp_path)


def test_a_key_that_is_there_twice_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    text = (folders["audited"] / "certificate.json").read_text()
    doubled = text.replace('"predicateType":', '"predicateType": "something else", "predicateType":', 1)
    assert json.loads(doubled) == json.loads(text), "Python alone would not see it"
    (tmp_path / "certificate.json").write_text(doubled)
    with pytest.raises(CertificateAltered, match="twice"):
        verify(tmp_path)
