"""A certified set that was opened: its rows for pyarrow, torch or Hugging Face, all through digests.

Place in the flow: what the loader hands out. Imports certificate and errors of `contracts`; pyarrow, and what
`contracts.adapters` needs, inside functions.

The certificate tells each shard's row groups, so that ranks and workers share them out without opening a
shard. A row group is hashed when it is read, from the bytes that are then decoded, and by nobody else.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from contracts.certificate import Certificate, CertificateError
from contracts.errors import ShardgateError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.dataset as ds


class NotEnoughGroups(ShardgateError):
    """There are more ranks than row groups."""


class HoldsNoShards(CertificateError):
    """The certified files are a trainer's own, not shards: they are verified, but not opened here."""


@dataclass(frozen=True, slots=True)
class RowGroup:
    """One row group: which of the certificate's shards, which of its groups, and how many rows."""

    shard: int
    index: int
    rows: int


class CertifiedSet:
    """A certified set, read-only. What it does not have itself is asked of `dataset`, a pyarrow dataset.

    certified = open_certified(folder)
    certified.to_table(columns=["sample_id"])       # as pyarrow.dataset.Dataset
    certified.torch(rank=0, world_size=8, seed=1)   # as torch.utils.data.IterableDataset
    certified.huggingface()                         # as datasets.Dataset
    """

    def __init__(self, certificate: Certificate) -> None:
        self.certificate = certificate

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # unpickling asks before `certificate` is there
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return CertifiedSet, (self.certificate,)

    @cached_property
    def dataset(self) -> ds.Dataset:
        """The shards, in the certificate's order, as a pyarrow dataset over verified bytes."""
        import pyarrow.dataset as ds
        from pyarrow.fs import PyFileSystem

        from contracts.verified_fs import VerifiedFiles

        paths = {str(self.certificate.path_of(shard)): shard.digest for shard in self.certificate.shards}
        return ds.dataset(list(paths), filesystem=PyFileSystem(VerifiedFiles(paths)), format="parquet")

    @cached_property
    def groups(self) -> tuple[RowGroup, ...]:
        """All row groups that have rows, in order; no shard is opened for it."""
        return tuple(
            RowGroup(number, index, segment.rows)
            for number, shard in enumerate(self.certificate.shards)
            for index, segment in enumerate(shard.digest.segments)
            if segment.rows
        )

    def share(
        self, rank: int = 0, world_size: int = 1, *, seed: int | None = None, epoch: int = 0
    ) -> list[RowGroup]:
        """Return the row groups of one rank of `world_size`: disjoint between ranks, all of them together.

        With a seed they are shuffled by (seed, epoch) before they are shared out.

        Raises:
            NotEnoughGroups: some rank would have none.
            ValueError: no such rank.
        """
        if not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} of {world_size}: ranks are numbered from 0 to {world_size - 1}")
        groups = list(self.groups)
        if len(groups) < world_size:
            raise NotEnoughGroups(
                f"{len(groups)} row groups for {world_size} ranks",
                where=str(self.certificate.path),
                why="a row group is the least that a rank reads, since it is what a digest covers",
                remedy="write smaller ones: `shardgate derive SET --out NEW --rows-per-group N`",
            )
        if seed is not None:
            groups = [groups[place] for place in permutation(len(groups), seed, epoch)]
        return groups[rank::world_size]

    def read(self, groups: Sequence[RowGroup], columns: Sequence[str] | None = None) -> Generator[pa.Table]:
        """Yield one table per row group, each hashed as it comes in.

        Raises:
            ShardAltered: a row group's bytes, or the footer that describes them, are not the certified ones.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        from contracts.verified_fs import CertifiedFile

        opened: tuple[int, Any] | None = None
        try:
            for group in groups:
                if opened is None or opened[0] != group.shard:
                    if opened is not None:
                        opened[1].close(force=True)
                    shard = self.certificate.shards[group.shard]
                    file = CertifiedFile(self.certificate.path_of(shard), shard.digest)
                    # By itself parquet would read the footer along with whatever lies before it.
                    file.seek(shard.digest.segments[-1].offset)
                    footer = pq.read_metadata(pa.BufferReader(file.read()))
                    opened = (group.shard, pq.ParquetFile(file, metadata=footer))
                chosen = None if columns is None else list(columns)
                yield opened[1].read_row_group(group.index, columns=chosen, use_threads=False)
        finally:
            if opened is not None:
                opened[1].close(force=True)

    def torch(
        self,
        rank: int = 0,
        world_size: int = 1,
        *,
        seed: int | None = None,
        columns: Sequence[str] | None = None,
        form: Literal["rows", "training"] = "rows",
        even: bool = False,
    ) -> Any:
        """Return a `torch.utils.data.IterableDataset` of this rank's rows; workers share them disjointly.

        Args:
            seed: shuffles row groups over the set and rows within a group; `set_epoch(n)` gives the n-th
                order. None keeps the order.
            columns: which to read; all by default.
            form: `rows` gives dictionaries of the columns' values, lists of numbers as tensors; `training`
                gives `sample_id`, `input_ids` and `loss_mask` (int64 [S], prompt + response).
            even: every rank gives as many rows as the smallest one has, so that none waits at the end.

        Raises:
            ShardgateError: torch is not installed, or there are fewer row groups than ranks.
        """
        from contracts.adapters import torch_rows

        return torch_rows(self, rank, world_size, seed, columns, form, even)

    def huggingface(self, *, columns: Sequence[str] | None = None, streaming: bool = False) -> Any:
        """Return a `datasets.Dataset` in memory; with `streaming`, an `IterableDataset` sharded by row group.

        Raises:
            ShardgateError: `datasets` is not installed.
        """
        from contracts.adapters import huggingface_rows

        return huggingface_rows(self, columns, streaming)


def permutation(count: int, *seeds: int) -> list[int]:
    """Return the numbers below `count` in the order of the seeds: the same on every machine and numpy."""
    import numpy as np

    # Of numpy's generators only the raw stream is promised to stay as it is (NEP 19).
    keys = np.random.PCG64(np.random.SeedSequence(list(seeds))).random_raw(count)
    return np.argsort(keys, kind="stable").tolist()  # type: ignore[no-any-return]
