"""Data of a DataFrame in a store: Parquet that Spark writes, and what is known of its columns."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.ml.functions import vector_to_array
from pyspark.ml.linalg import DenseVector, VectorUDT
from pyspark.sql import DataFrame
from pyspark.sql.functions import col
from pyspark.sql.types import ArrayType, BooleanType, NumericType

from horoacc.spark.store import Store

Metadata = dict[str, dict[str, Any]]
"""Of each column `spark_data_type`, a class of pyspark's, and `shape`, the numbers in a row."""


@dataclass(frozen=True)
class Dataset:
    """Data that are in a store."""

    train_path: str
    val_path: str | None
    train_rows: int
    val_rows: int
    metadata: Metadata


class Datasets:
    """The data sets of one store that are in use, or still there: a DataFrame is written once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._keys: list[Any] = []
        self._users: list[int] = []
        self._made: list[Dataset | None] = []

    @contextlib.contextmanager
    def use(self, store: Store, frame: DataFrame, key: Any, make: Any) -> Iterator[Dataset]:
        """Gives a data set that is there, or has it made in a place that is free.

        Args:
            store: The store.
            frame: The DataFrame; the same object is the same data.
            key: What else makes a difference.
            make: Takes the number of the place, and writes the data.
        """
        whole = (frame, key)
        with self._lock:
            idx = next((at for at, one in enumerate(self._keys) if _same(one, whole)), None)
            if idx is None:
                free = (at for at, users in enumerate(self._users) if not users)
                idx = next(free, len(self._users))
                if idx == len(self._users):
                    self._keys.append(None)
                    self._users.append(0)
                    self._made.append(None)
                self._keys[idx], self._made[idx] = None, None
            self._users[idx] += 1
        try:
            if self._made[idx] is None:
                self._made[idx] = make(idx)
                self._keys[idx] = whole
            found = self._made[idx]
            assert found is not None
            yield found
        finally:
            with self._lock:
                self._users[idx] -= 1


def _same(one: Any, other: Any) -> bool:
    return one is not None and one[0] is other[0] and bool(one[1] == other[1])


class _Known:
    """The data sets of each store that is alive. Two stores of one path have the same."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._at: weakref.WeakValueDictionary[str, Datasets] = weakref.WeakValueDictionary()
        self._of: weakref.WeakKeyDictionary[Store, Datasets] = weakref.WeakKeyDictionary()

    def of(self, store: Store) -> Datasets:
        with self._lock:
            path = store.get_train_data_path()
            self._of[store] = found = self._at.setdefault(path, Datasets())
            return found


_known = _Known()


@contextlib.contextmanager
def prepared(
    store: Store,
    frame: DataFrame,
    features: Sequence[str],
    labels: Sequence[str],
    weight: str | None,
    validation: float | str | None,
    partitions: int,
) -> Iterator[Dataset]:
    """Writes a DataFrame into a store, unless it is there already.

    Args:
        store: The store.
        frame: The DataFrame.
        features: Names of columns.
        labels: The same.
        weight: The column of the samples' weights, if there is one.
        validation: The share of rows that are for validation, or the column that says so.
        partitions: How many files of data there are to be.

    Yields:
        The data set.

    Raises:
        ValueError: A column is not there, or of a type that is no number.
    """
    columns = [*dict.fromkeys([*features, *labels, *([weight] if weight else [])])]
    named = [*columns, *([validation] if isinstance(validation, str) else [])]
    if validation is True:
        raise ValueError("parameter validation is True, which only fit_on_parquet understands")
    if missing := [name for name in named if name not in frame.columns]:
        raise ValueError(f"the DataFrame has no column {', '.join(missing)}")

    def make(idx: int) -> Dataset:
        train, val = _split(frame, validation)
        train_path, val_path = store.get_train_data_path(idx), store.get_val_data_path(idx)
        _write(train, columns, train_path, partitions)
        if val is not None:
            _write(val, columns, val_path, partitions)
        return _described(store, train_path, val_path if val is not None else None, columns, frame)

    key = (tuple(columns), validation, partitions)
    with _known.of(store).use(store, frame, key, make) as found:
        yield found


def found(store: Store, columns: Sequence[str], validation: object, idx: int | None) -> Dataset:
    """Describes data that are in a store already.

    Args:
        store: The store.
        columns: Those that are needed.
        validation: Whether data to validate on are needed, too.
        idx: The number of the data set, or None.

    Raises:
        FileNotFoundError: There are none.
        ValueError: A column is not there.
    """
    path = store.get_val_data_path(idx) if validation else None
    return _described(store, store.get_train_data_path(idx), path, columns, None)


def _split(frame: DataFrame, validation: float | str | None) -> tuple[DataFrame, DataFrame | None]:
    if not validation:
        return frame, None
    if isinstance(validation, str):
        held_out = col(validation).cast("boolean")
        return frame.filter(~held_out), frame.filter(held_out)
    train, val = frame.randomSplit([1.0 - validation, validation])
    return train, val


def _write(frame: DataFrame, columns: Sequence[str], path: str, partitions: int) -> None:
    chosen = []
    for name in columns:
        kind = frame.schema[name].dataType
        column = col(name)
        if isinstance(kind, VectorUDT):
            column = vector_to_array(column).alias(name)
        elif not isinstance(_inner(kind), (NumericType, BooleanType)):
            raise ValueError(f"column {name} is of type {kind.simpleString()}, which is no number")
        chosen.append(column)
    frame.select(*chosen).repartition(partitions).write.mode("overwrite").parquet(path)


def _inner(kind: Any) -> Any:
    return _inner(kind.elementType) if isinstance(kind, ArrayType) else kind


def _described(
    store: Store,
    train_path: str,
    val_path: str | None,
    columns: Sequence[str],
    frame: DataFrame | None,
) -> Dataset:
    data = store.get_parquet_dataset(train_path)
    if missing := [name for name in columns if name not in data.schema.names]:
        raise ValueError(f"the data at {train_path} have no column {', '.join(missing)}")
    rows = data.count_rows()
    if not rows:
        raise ValueError(f"there are no rows to train on at {train_path}")
    first = data.head(1, columns=list(columns))
    metadata = {}
    for name in columns:
        value = first[name][0].as_py()
        kind: Any = None if frame is None else type(frame.schema[name].dataType)
        if kind is VectorUDT or kind is None:
            kind = DenseVector if isinstance(value, list) else _scalar(data.schema.field(name))
        metadata[name] = {"spark_data_type": kind, "shape": _count(value)}
    val_rows = store.get_parquet_dataset(val_path).count_rows() if val_path else 0
    return Dataset(train_path, val_path, rows, val_rows, metadata)


def _scalar(field: Any) -> Any:
    from pyspark.sql.pandas.types import from_arrow_type

    return type(from_arrow_type(field.type))


def _count(value: Any) -> int:
    return sum(_count(one) for one in value) if isinstance(value, list) else 1


def check_shapes(
    metadata: Metadata, columns: Sequence[str], shapes: Sequence[Sequence[int]] | None, what: str
) -> None:
    """Raises ValueError if columns cannot have shapes.

    Args:
        metadata: Of the columns.
        columns: Their names.
        shapes: One for each, in which -1 is any number; None: nothing is asked.
        what: The parameter's name.
    """
    if shapes is None:
        return
    if len(shapes) != len(columns):
        raise ValueError(f"{what} has {len(shapes)} shapes for {len(columns)} columns")
    for name, shape in zip(columns, shapes, strict=True):
        count, has = 1, metadata[name]["shape"]
        for size in shape:
            count *= abs(size)
        if (has % count) if -1 in list(shape)[1:] else (has != count):
            raise ValueError(f"column {name} has {has} numbers in a row, and {what} {list(shape)}")
