"""A certified set for the trainers' own libraries: a torch IterableDataset, a Hugging Face dataset.

Place in the flow: behind `CertifiedSet`, which imports it when one is asked for. Imports certified_set of
`contracts`; numpy and pyarrow inside functions; torch and datasets by name, when called for, and only then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from contracts.certified_set import CertifiedSet, RowGroup, permutation
from contracts.errors import ShardgateError

if TYPE_CHECKING:
    import pyarrow as pa

TRAINING_COLUMNS = ("sample_id", "prompt_token_ids", "response_token_ids", "loss_mask")


def _library(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        package = name.split(".")[0]
        raise ShardgateError(
            f"{package} is not installed", why=str(error), remedy=f"pip install {package}"
        ) from error


def quotas(shares: Sequence[Sequence[RowGroup]], limit: int | None) -> list[int]:
    """Return how many rows each share gives, in sum at most `limit`; the last shares give up theirs first."""
    out, left = [], limit
    for share in shares:
        rows = sum(group.rows for group in share)
        out.append(rows if left is None else min(rows, left))
        left = None if left is None else left - out[-1]
    return out


@lru_cache(maxsize=1)
def _rows_class() -> type:
    """Return the dataset's class; made when torch is first asked for."""
    data = _library("torch.utils.data")

    class CertifiedRows(data.IterableDataset):  # type: ignore[misc, name-defined]
        """Rows of one rank, as `CertifiedSet.torch` says."""

        def __init__(self, certified: CertifiedSet, rank: int, world_size: int, *rest: Any) -> None:
            self._arguments = (certified, rank, world_size, *rest)
            self._seed, self._columns, self._form, self._even = rest
            self.epoch = 0
            certified.share(rank, world_size)  # refuses what can't be shared out, here and not in a worker

        def __reduce__(self) -> tuple[Any, ...]:
            # The class is made in a function, so that it can't be found by its name in another process.
            return _again, (self._arguments, self.epoch)

        def set_epoch(self, epoch: int) -> None:
            """Give the order of this epoch from the next iteration on; before workers are started."""
            self.epoch = epoch

        def _share(self, rank: int | None = None) -> list[RowGroup]:
            certified, own, world_size = self._arguments[:3]
            return certified.share(  # type: ignore[no-any-return]
                own if rank is None else rank, world_size, seed=self._seed, epoch=self.epoch
            )

        def _limit(self) -> int | None:
            if not self._even:
                return None
            shares = [self._share(rank) for rank in range(self._arguments[2])]
            return min(sum(group.rows for group in share) for share in shares)

        def __len__(self) -> int:
            return sum(quotas([self._share()], self._limit()))

        def __iter__(self) -> Iterator[dict[str, Any]]:
            worker = data.get_worker_info()
            number, count = (0, 1) if worker is None else (worker.id, worker.num_workers)
            share = self._share()
            shares = [share[start::count] for start in range(count)]
            left = quotas(shares, self._limit())[number]
            columns = TRAINING_COLUMNS if self._form == "training" else self._columns
            for group, table in zip(
                shares[number], self._arguments[0].read(shares[number], columns), strict=True
            ):
                if left <= 0:
                    return
                order = list(range(table.num_rows))
                if self._seed is not None:
                    order = permutation(table.num_rows, self._seed, self.epoch, group.shard, group.index)
                make = _training if self._form == "training" else _values
                yield from make(table.take(order[:left]))
                left -= table.num_rows

    return CertifiedRows


def _again(arguments: tuple[Any, ...], epoch: int) -> Any:
    rows = _rows_class()(*arguments)
    rows.set_epoch(epoch)
    return rows


def torch_rows(
    certified: CertifiedSet,
    rank: int,
    world_size: int,
    seed: int | None,
    columns: Sequence[str] | None,
    form: str,
    even: bool,
) -> Any:
    """Return the torch dataset of one rank; see `CertifiedSet.torch`."""
    if form not in ("rows", "training"):
        raise ValueError(f"form {form!r} is neither 'rows' nor 'training'")
    if form == "training" and certified.certificate.predicate["contract"]["strength"] != "token":
        raise ShardgateError(
            "these rows can't be given as token ids and mask",
            where=str(certified.certificate.path),
            why="the set was certified at strength `text`: it has no token ids",
            remedy="use form='rows'",
        )
    return _rows_class()(certified, rank, world_size, seed, columns, form, even)


def _values(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Yield a table's rows; lists of numbers as tensors over their own copy."""
    import numpy as np
    import pyarrow as pa

    from_numpy = _library("torch").from_numpy
    columns: dict[str, list[Any]] = {}
    for name in table.column_names:
        column, kind = table[name], table[name].type
        if pa.types.is_list(kind) and (
            pa.types.is_integer(kind.value_type) or pa.types.is_floating(kind.value_type)
        ):
            wide = np.int64 if pa.types.is_integer(kind.value_type) else np.float32
            columns[name] = [
                None if not value.is_valid else from_numpy(np.array(value.values, dtype=wide))
                for value in column
            ]
        else:
            columns[name] = column.to_pylist()
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values, strict=True))


def _training(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Yield id, `input_ids` (prompt + response) and `loss_mask`; without spans the mask is the response."""
    torch = _library("torch")
    for row in _values(table):
        prompt, response, spans = row["prompt_token_ids"], row["response_token_ids"], row["loss_mask"]
        ids = torch.cat([prompt, response])
        mask = torch.zeros_like(ids)
        for span in [{"start": len(prompt), "length": len(response)}] if spans is None else spans:
            mask[span["start"] : span["start"] + span["length"]] = 1
        yield {"sample_id": row["sample_id"], "input_ids": ids, "loss_mask": mask}


def huggingface_rows(certified: CertifiedSet, columns: Sequence[str] | None, streaming: bool) -> Any:
    """Return the Hugging Face dataset; see `CertifiedSet.huggingface`."""
    import pyarrow as pa

    datasets = _library("datasets")
    if streaming:
        # `datasets` shares lists out between nodes and workers: here the groups, and nothing else.
        chosen = None if columns is None else tuple(columns)
        arguments = {"groups": list(certified.groups), "certified": certified, "columns": chosen}
        return datasets.IterableDataset.from_generator(_streamed, gen_kwargs=arguments)
    tables = [_plain(table) for table in certified.read(certified.groups, columns)]
    return datasets.Dataset(datasets.table.InMemoryTable(pa.concat_tables(tables)))


def _streamed(
    groups: list[RowGroup], certified: CertifiedSet, columns: tuple[str, ...] | None
) -> Iterator[dict[str, Any]]:
    for table in certified.read(groups, columns):
        yield from _plain(table).to_pylist()


def _plain(table: pa.Table) -> pa.Table:
    """Return the table in types that `datasets` knows: no dictionaries, no fixed-size binary."""
    import pyarrow as pa

    fields = []
    for field in table.schema:
        kind = field.type
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        elif pa.types.is_fixed_size_binary(kind):
            kind = pa.binary()
        fields.append(pa.field(field.name, kind, field.nullable))
    return table.cast(pa.schema(fields))
