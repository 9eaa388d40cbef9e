"""The export: a certified set in, a trainer's files and their certificate out.

Place in the flow: the exporters' entry. Imports this package, accounting, derive and loader of `contracts`.

    DIR/train.jsonl (or what the trainer's form is)
    DIR/differs.log      of a text form: each row whose rendering is not its ids, and where
    DIR/certificate.json   written last; names the source, the rows by count and digest, and the files
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from contracts.accounting import Summary
from contracts.certificate import FILE_NAME, Certificate
from contracts.errors import ShardgateError
from contracts.exporters import arrow, texts, tokens
from contracts.held import folder_held
from contracts.shard import Row, replace_file

if TYPE_CHECKING:
    import pyarrow as pa

    from contracts.certified_set import CertifiedSet

Progress = Callable[[str, int, int], None]
"""Called with (file, rows so far, rows in all)."""

DIFFERS = "differs.log"
BATCH = 256
SHOWN = 10


class ExportFault(ShardgateError):
    """The export was asked for something that can't be done."""


@dataclass(frozen=True, slots=True)
class Form:
    """One form of a trainer's: what it is, whether it holds tokens or texts, a record, the container."""

    meaning: str
    holds: Literal["tokens", "texts"]
    record: Callable[[Row], dict[str, Any]]
    container: Literal["jsonl", "arrow", "parquet"] = "jsonl"


def _torchspec(row: Row) -> dict[str, Any]:
    """Return a record of TorchSpec: the conversation, and beside it the ids with their packed mask."""
    record = texts.conversations(row)
    if row["response_token_ids"] is not None:
        record |= {"input_ids": tokens.input_ids(row), "packed_loss_mask": tokens.packed_mask(row)}
    return record


FORMS: Mapping[str, Form] = {
    "specforge-ids": Form(
        "SpecForge, `prompts_path`: input_ids and loss_mask", "tokens", tokens.specforge_ids
    ),
    "specforge": Form("SpecForge, `train_data_path`: conversations", "texts", texts.conversations),
    "speculators": Form("speculators' JSONL: input_ids, loss_mask, metadata", "tokens", tokens.speculators),
    "speculators-arrow": Form(
        "speculators' Arrow folder: input_ids, loss_mask, seq_len", "tokens", tokens.seq_record, "arrow"
    ),
    "torchspec": Form("TorchSpec: conversations, input_ids and packed_loss_mask", "texts", _torchspec),
    "automodel": Form(
        "Automodel: a parquet folder of messages, with manifest.json", "texts", texts.chat, "parquet"
    ),
    "automodel-jsonl": Form("Automodel: JSONL of messages", "texts", texts.chat),
    "model-optimizer": Form(
        "Model-Optimizer: JSONL of messages with conversation_id", "texts", texts.modelopt
    ),
}


@dataclass(frozen=True, slots=True)
class ExportResult:
    """What an export came to. `differing` rows render to other ids; None where that was not compared."""

    folder: str
    form: str
    rows: int
    differing: int | None
    files: tuple[str, ...]
    certificate: str | None
    first_differing: tuple[Mapping[str, Any], ...] = ()


def export_rows(
    form_name: str,
    source: Path | str | Sequence[Path],
    out: Path | str,
    *,
    certified: bool = True,
    render: texts.Render | None = None,
    on_progress: Progress | None = None,
) -> ExportResult:
    """Write a set in a trainer's form.

    Args:
        source: a certified set; with `certified=False` shards, whatever they hold, and no certificate is
            written.
        render: what a text form's rows are rendered with, for comparison with their ids.

    Raises:
        ExportFault: the rows have no ids and the form needs them, or the folder holds something already.
        CertificateError: the set is not certified or not what its certificate says.
    """
    form, out = FORMS[form_name], Path(out)
    _refuse_used(out)
    certificate, batches, total = _opened(source, certified)
    if certificate is not None and (form.holds, certificate.predicate["contract"]["strength"]) == (
        "tokens",
        "text",
    ):
        raise _no_ids(str(certificate.path))
    with folder_held(out), closing(batches):
        _refuse_used(out)
        (out / BEGUN).touch()
        summary = Summary()
        told: dict[str, Any] = {"rows": 0, "differing": 0, "compared": 0, "first": []}

        def rows(differs: Any) -> Iterator[dict[str, Any]]:
            for table in batches:
                if certificate is not None:
                    summary.add(table)
                for row in table.to_pylist():
                    told["rows"] += 1
                    has_ids = row["response_token_ids"] is not None
                    if form.holds == "tokens" and not has_ids:
                        raise _no_ids(f"row {told['rows'] - 1}, sample {row['sample_id']}")
                    if render is not None and has_ids and form.holds == "texts":
                        _compare(row, render, told, differs, form_name)
                    yield form.record(row)
                if on_progress is not None:
                    on_progress(str(out), told["rows"], total)

        files = _write(form, out, rows)
        certificate_path = None
        if certificate is not None:
            from contracts.derive import DerivedFile, Operation, derived_certificate

            counts = {files[0]: told["rows"]} if form.container != "parquet" else _parquet_rows(files)
            derived_certificate(
                out,
                [certificate],
                [DerivedFile(path, counts.get(path, 0)) for path in files],
                [Operation("export", {"form": form_name})],
                summary,
            )
            certificate_path = str(out / FILE_NAME)
        (out / BEGUN).unlink(missing_ok=True)
    return ExportResult(
        folder=str(out),
        form=form_name,
        rows=told["rows"],
        differing=told["differing"] if told["compared"] else None,
        files=tuple(path.name for path in files),
        certificate=certificate_path,
        first_differing=tuple(told["first"]),
    )


def _no_ids(where: str) -> ExportFault:
    return ExportFault(
        "rows without ids can't be written as ids",
        where=where,
        why="the set has the strength `text`",
        remedy="export it in a text form, or record the rows again with the engine's ids",
    )


def _opened(
    source: Path | str | Sequence[Path], certified: bool
) -> tuple[Certificate | None, Generator[pa.Table], int]:
    if certified:
        from contracts.loader import open_certified

        if not isinstance(source, str | Path):
            if len(source) != 1:
                raise ExportFault(
                    "one certified set at a time", remedy="join sets with `shardgate derive` first"
                )
            source = source[0]
        opened = open_certified(source, check=False)
        return opened.certificate, _verified(opened), sum(shard.rows for shard in opened.certificate.shards)
    from contracts.run import expand

    files = expand([source] if isinstance(source, str | Path) else source)
    return None, _plain(files), 0


def _verified(opened: CertifiedSet) -> Generator[pa.Table]:
    """Yield the rows in order, read by this thread alone: a reader that reads ahead outlives an error."""
    with closing(opened.read(opened.groups)) as groups:
        for group in groups:
            for start in range(0, group.num_rows, BATCH):
                yield group.slice(start, BATCH)


def _plain(files: Sequence[Path]) -> Generator[pa.Table]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    for path in files:
        try:
            with pq.ParquetFile(path) as parquet:
                for batch in parquet.iter_batches(batch_size=BATCH):
                    yield pa.Table.from_batches([batch])
        except (pa.ArrowException, OSError) as error:
            raise ExportFault(
                "a shard can't be read",
                where=str(path),
                why=str(error)[:300],
                remedy="audit the shards first",
            ) from error


def _refuse_used(out: Path) -> None:
    if not out.is_dir():
        return  # where it can't be made, holding it says so
    found = next((path for path in sorted(out.iterdir()) if not path.name.endswith(".tmp")), None)
    if found is not None and (out / FILE_NAME).exists():
        raise ExportFault("the folder holds a certified set", where=str(out), remedy="name a new folder")
    if found is not None and not (out / BEGUN).exists():
        raise ExportFault(
            "the folder is not empty", where=str(found), remedy="name a new folder: an export has its own"
        )


BEGUN = ".export-begun"


def _write(form: Form, out: Path, rows: Callable[[Any], Iterator[dict[str, Any]]]) -> list[Path]:
    made: list[Path] = []

    def fill(differs: Any) -> None:
        if form.container == "arrow":
            made.extend(arrow.write_arrow_folder(out, rows(differs)))
        elif form.container == "parquet":
            made.extend(arrow.write_parquet_folder(out, rows(differs)))
        else:
            made.append(_jsonl(out / "train.jsonl", rows(differs)))

    if form.holds == "texts":
        replace_file(out / DIFFERS, fill)
    else:
        fill(None)
    return made


LINE_ENDS = {0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}
"""Characters that `str.splitlines`, which Automodel reads JSONL with, takes for the end of a line."""


def _jsonl(path: Path, rows: Iterable[dict[str, Any]]) -> Path:
    def fill(handle: Any) -> None:
        for row in rows:
            text = json.dumps(row, ensure_ascii=False)
            if not text.isascii():
                text = text.translate(LINE_ENDS)
            handle.write(text.encode() + b"\n")

    replace_file(path, fill)
    return path


def _compare(row: Row, render: texts.Render, told: dict[str, Any], differs: Any, form: str) -> None:
    told["compared"] += 1
    found = texts.difference(row, render, drops_bad_arguments=form == "specforge")
    if found is None:
        return
    told["differing"] += 1
    line = {"row": told["rows"] - 1, "sample_id": row["sample_id"], **found}
    differs.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
    if len(told["first"]) < SHOWN:
        told["first"].append(line)


def _parquet_rows(files: Sequence[Path]) -> dict[Path, int]:
    import pyarrow.parquet as pq

    return {path: pq.read_metadata(path).num_rows for path in files if path.suffix == ".parquet"}
