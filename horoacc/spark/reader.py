"""Batches of a rank's share of a Parquet data set."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow
import pyarrow.dataset
from numpy.typing import NDArray

from horoacc.spark.store import Store

Columns = dict[str, NDArray[Any]]
"""The rows of a batch, by column: arrays of shape (rows,) or (rows, numbers in a row)."""

_CHUNK_ROWS = 4096
_BUFFER_BYTES = 1 << 30
"""Of rows among which the next ones are drawn."""
_AHEAD = 4  # chunks that are read before they are asked for


@dataclass(frozen=True)
class Reading:
    """How a data set is read.

    Attributes:
        columns: Those that are needed.
        batch_size: Rows of a batch.
        shuffle: Whether rows come in another order in each epoch.
        buffer_rows: Rows among which the next ones are drawn; None: 1 GiB of them, 0: no shuffling.
        seed: Of the order.
        workers: Files that are read at a time.
        threads: Whether threads read.
        in_memory: Whether a share is read once and kept.
        transform: Takes and gives a DataFrame of pandas, after reading.
    """

    columns: tuple[str, ...]
    batch_size: int
    shuffle: bool = True
    buffer_rows: int | None = None
    seed: int | None = None
    workers: int = 2
    threads: bool = True
    in_memory: bool = False
    transform: Callable[[Any], Any] | None = None


class Batches:
    """Batches of one rank's share, without end: epoch follows upon epoch.

    All ranks have as many rows, give or take one, so that none waits long for another.
    """

    def __init__(self, store: Store, path: str, rank: int, size: int, how: Reading) -> None:
        """Opens the data set.

        Args:
            store: Has the data.
            path: The data set's URL.
            rank: This rank.
            size: The number of ranks.
            how: How to read.

        Raises:
            ValueError: There are fewer rows than ranks.
        """
        self._how = how
        self._data = store.get_parquet_dataset(path)
        total = self._data.count_rows()
        self._first, self._last = total * rank // size, total * (rank + 1) // size
        if self._first == self._last:
            raise ValueError(f"{total} rows at {path} are too few for {size} ranks")
        self._random = np.random.default_rng(how.seed)
        self._kept: list[Columns] | None = None
        self._iterator = self._batches()

    def __iter__(self) -> Iterator[Columns]:
        return self

    def __next__(self) -> Columns:
        return next(self._iterator)

    def close(self) -> None:
        """Ends the reading."""
        self._iterator.close()

    def _batches(self) -> Any:
        """Cuts the rows of all epochs into batches."""
        rest: list[Columns] = []
        have = 0
        for _ in itertools.count():
            for rows in self._epoch():
                rest.append(rows)
                have += _rows(rows)
                if have < self._how.batch_size:
                    continue
                whole = _joined(rest)
                at = 0
                while have - at >= self._how.batch_size:
                    yield _cut(whole, at, at + self._how.batch_size)
                    at += self._how.batch_size
                rest, have = ([_cut(whole, at, have)], have - at) if at < have else ([], 0)

    def _epoch(self) -> Iterator[Columns]:
        """The rows of the share once, in their order or shuffled through a buffer."""
        buffer_rows = self._how.buffer_rows
        if not self._how.shuffle or buffer_rows == 0:
            yield from self._chunks()
            return
        held: list[Columns] = []
        have = 0
        for rows in self._chunks():
            if buffer_rows is None:
                bytes_each = max(1, sum(a.nbytes for a in rows.values()) // max(_rows(rows), 1))
                buffer_rows = max(_CHUNK_ROWS, _BUFFER_BYTES // bytes_each)
            held.append(rows)
            have += _rows(rows)
            if have > buffer_rows + _CHUNK_ROWS:
                mixed = self._mixed(held)
                yield _cut(mixed, buffer_rows, have)
                held, have = [_cut(mixed, 0, buffer_rows)], buffer_rows
        if held:
            yield self._mixed(held)

    def _mixed(self, held: list[Columns]) -> Columns:
        whole = _joined(held)
        order = self._random.permutation(_rows(whole))
        return {name: array[order] for name, array in whole.items()}

    def _chunks(self) -> Iterator[Columns]:
        if self._kept is not None:
            yield from self._kept
            return
        kept: list[Columns] = []
        read = _ahead(self._read()) if self._how.threads else self._read()
        for rows in read:
            if self._how.in_memory:
                kept.append(rows)
            yield rows
        if self._how.in_memory:
            self._kept = kept

    def _read(self) -> Iterator[Columns]:
        """Reads the files in which the share lies."""
        at = 0
        for fragment in self._data.get_fragments():
            count = fragment.count_rows()
            start, stop = max(self._first - at, 0), min(self._last - at, count)
            at += count
            if start >= stop:
                continue
            begun = 0
            for batch in fragment.to_batches(
                columns=list(self._how.columns), batch_size=_CHUNK_ROWS,
                use_threads=self._how.threads, batch_readahead=self._how.workers,
            ):  # fmt: skip
                low, high = max(start - begun, 0), min(stop - begun, batch.num_rows)
                begun += batch.num_rows
                if low < high:
                    yield self._arrays(batch.slice(low, high - low))

    def _arrays(self, batch: pyarrow.RecordBatch) -> Columns:
        arrays = {name: _array(name, batch.column(name)) for name in self._how.columns}
        if self._how.transform is None:
            return arrays
        import pandas

        frame = pandas.DataFrame({name: list(array) for name, array in arrays.items()})
        changed = self._how.transform(frame)
        return {name: np.stack(changed[name].to_numpy()) for name in changed.columns}


def _array(name: str, column: Any) -> NDArray[Any]:
    """A column as an array of as many dimensions as its lists are deep."""
    if column.null_count:
        raise ValueError(f"column {name} has a row without a value")
    if not pyarrow.types.is_list(column.type):
        return np.asarray(column.to_numpy(zero_copy_only=False))
    inner = _array(name, column.flatten())
    lengths = np.diff(column.offsets.to_numpy())
    if len(set(lengths.tolist())) > 1:
        raise ValueError(f"column {name} has rows of {lengths.min()} to {lengths.max()} numbers")
    return inner.reshape(len(column), -1, *inner.shape[1:])


def _ahead(source: Iterator[Columns]) -> Iterator[Columns]:
    """Reads in a thread what is asked for next."""
    ready: queue.Queue[Columns | BaseException | None] = queue.Queue(_AHEAD)
    over = threading.Event()

    def put(one: Columns | BaseException | None) -> None:
        while not over.is_set():
            try:
                ready.put(one, timeout=0.1)
                return
            except queue.Full:
                continue

    def read() -> None:
        try:
            for rows in source:
                put(rows)
                if over.is_set():
                    return
            put(None)
        except BaseException as error:
            put(error)

    thread = threading.Thread(target=read, name="horoacc-spark-reader", daemon=True)
    thread.start()
    try:
        while (one := ready.get()) is not None:
            if isinstance(one, BaseException):
                raise one
            yield one
    finally:
        over.set()
        thread.join()


def _rows(rows: Columns) -> int:
    return len(next(iter(rows.values())))


def _joined(parts: Sequence[Columns]) -> Columns:
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _cut(rows: Columns, start: int, stop: int) -> Columns:
    return {name: array[start:stop] for name, array in rows.items()}
