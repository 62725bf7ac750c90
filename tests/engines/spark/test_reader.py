"""Batches of a rank's share, without Spark."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from horoacc.spark.reader import Batches, Reading
from horoacc.spark.store import LocalStore

ROWS = 1000


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    """Rows 0 to 999 in files of different lengths, an array of two numbers beside each."""
    store = LocalStore(str(tmp_path))
    folder = tmp_path / "intermediate_train_data"
    folder.mkdir()
    for number, (start, stop) in enumerate([(0, 10), (10, 700), (700, 700), (700, ROWS)]):
        rows = list(range(start, stop))
        table = pyarrow.table(
            {"x": pyarrow.array(rows, pyarrow.int64()),
             "pair": pyarrow.array([[row, -row] for row in rows], pyarrow.list_(pyarrow.float64()))}
        )  # fmt: skip
        pyarrow.parquet.write_table(table, folder / f"{number}.parquet", row_group_size=100)
    return store


def epoch(store: LocalStore, rank: int, size: int, epochs: int = 1, **how: Any) -> list[int]:
    """The rows that a rank gets in so many epochs, in batches of ten."""
    reading = Reading(columns=("x", "pair"), batch_size=10, **how)
    batches = Batches(store, store.get_train_data_path(), rank, size, reading)
    rows: list[int] = []
    count = epochs * (ROWS * (rank + 1) // size - ROWS * rank // size) // 10
    for batch in itertools.islice(batches, count):
        assert batch["pair"].shape == (10, 2)
        assert np.array_equal(batch["pair"][:, 0], batch["x"])
        rows += batch["x"].tolist()
    batches.close()
    return rows


@pytest.mark.parametrize("threads", [True, False])
@pytest.mark.parametrize("size", [1, 4])
def test_shares_in_order(store: LocalStore, size: int, threads: bool) -> None:
    shares = [epoch(store, rank, size, shuffle=False, threads=threads) for rank in range(size)]
    assert list(itertools.chain(*shares)) == list(range(ROWS))


@pytest.mark.parametrize("memory", [True, False])
def test_each_row_once_an_epoch_in_another_order(store: LocalStore, memory: bool) -> None:
    rows = epoch(store, 1, 2, epochs=3, seed=1, in_memory=memory)
    epochs = [rows[at : at + 500] for at in range(0, 1500, 500)]
    assert all(sorted(one) == list(range(500, 1000)) for one in epochs)
    assert len({tuple(one) for one in epochs}) == 3
    assert rows == epoch(store, 1, 2, epochs=3, seed=1, in_memory=memory)
    assert rows != epoch(store, 1, 2, epochs=3, seed=2, in_memory=memory)


def test_a_buffer_of_no_rows_shuffles_nothing(store: LocalStore) -> None:
    assert epoch(store, 0, 1, buffer_rows=0) == list(range(ROWS))


def test_rows_are_transformed(store: LocalStore) -> None:
    def negative(frame: Any) -> Any:
        frame["x"] = -frame["x"]
        frame["pair"] = [-pair for pair in frame["pair"]]
        return frame

    rows = epoch(store, 0, 1, shuffle=False, transform=negative)
    assert rows == [-row for row in range(ROWS)]


def test_errors(store: LocalStore, tmp_path: Path) -> None:
    reading = Reading(columns=("x",), batch_size=1)
    with pytest.raises(ValueError, match=r"1000 rows at .* are too few for 1001 ranks"):
        Batches(store, store.get_train_data_path(), 0, 1001, reading)
    path = tmp_path / "mine"
    path.mkdir()
    pyarrow.parquet.write_table(pyarrow.table({"x": [1, None]}), path / "part.parquet")
    with pytest.raises(ValueError, match="column x has a row without a value"):
        next(Batches(store, str(path), 0, 1, reading))
