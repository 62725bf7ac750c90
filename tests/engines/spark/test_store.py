"""Stores: paths, files, and what is copied."""

from __future__ import annotations

from pathlib import Path

import fsspec
import pyarrow
import pyarrow.parquet
import pytest

from horoacc.spark import store as stores
from horoacc.spark.store import DBFSLocalStore, FilesystemStore, HDFSStore, LocalStore, Store


@pytest.mark.parametrize("kind", ["path", "file", "memory"])
def test_files(tmp_path: Path, kind: str) -> None:
    url = {"path": f"{tmp_path}/s", "file": f"file://{tmp_path}/s", "memory": "memory:///s"}[kind]
    store = Store.create(url)
    assert type(store) is FilesystemStore
    full = url if "://" in url else f"file://{url}"
    assert store.get_train_data_path() == f"{full}/intermediate_train_data"
    assert store.get_val_data_path(3) == f"{full}/intermediate_val_data.3"
    assert store.get_test_data_path() == f"{full}/intermediate_test_data"
    assert store.get_logs_path("one") == f"{full}/runs/one/logs"
    path = f"{store.get_run_path('one')}/text.ckpt"
    assert not store.exists(path)
    store.write_text(path, "words")
    assert store.exists(path) and store.read(path) == b"words"
    assert [name.rpartition("/")[2] for name in store.get_checkpoints("one")] == ["text.ckpt"]
    store.fs.rm(store.get_localized_path(full), recursive=True)


def test_a_folder_is_copied(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path / "store"))
    sync = store.sync_fn("one")
    with store.get_local_output_dir_fn("one")() as folder:
        Path(folder, "below").mkdir()
        for _ in range(2):
            Path(folder, "a").write_text("first")
            Path(folder, "below", "b").write_text("second")
            sync(folder)
            Path(folder, "a").write_text("third")
            sync(folder)
    run = tmp_path / "store" / "runs" / "one"
    files = sorted(str(path.relative_to(run)) for path in run.rglob("*") if path.is_file())
    assert files == ["a", "below/b"] and (run / "a").read_text() == "third"
    assert not Path(folder).exists()


def test_parquet(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path), save_runs=False, train_path=str(tmp_path / "mine"))
    path = store.get_train_data_path()
    assert path == f"file://{tmp_path}/mine"
    assert not store.is_parquet_dataset(path)
    (tmp_path / "mine").mkdir()
    pyarrow.parquet.write_table(pyarrow.table({"x": [1, 2]}), tmp_path / "mine" / "part.parquet")
    assert store.is_parquet_dataset(path)
    assert store.get_parquet_dataset(path).count_rows() == 2
    assert store.get_checkpoint_path("one") is None and store.get_logs_path("one") is None


class Recorded(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """Stands for HDFS, which is not here: knows paths only."""

    protocol = "hdfs"


@pytest.mark.parametrize(
    ("prefix", "full"),
    [
        ("hdfs://namenode01:8020/user/output", "hdfs://namenode01:8020/user/output"),
        ("hdfs:///user/output", "hdfs:///user/output"),
        ("/user/output", "hdfs:///user/output"),
    ],
)
def test_paths_in_hdfs(monkeypatch: pytest.MonkeyPatch, prefix: str, full: str) -> None:
    monkeypatch.setattr(stores.FilesystemStore, "_open", lambda *_: Recorded())
    store = HDFSStore(prefix, user="somebody", val_path="/user/val")
    assert store.storage_options == {"user": "somebody"}
    root = full.removesuffix("/user/output")
    assert store.get_train_data_path() == f"{full}/intermediate_train_data"
    assert store.get_val_data_path() == f"{root}/user/val"
    if prefix.startswith("hdfs"):
        assert isinstance(Store.create(prefix), HDFSStore)


def test_what_is_not_in_hdfs() -> None:
    with pytest.raises(ValueError, match="file:///user is no path in HDFS"):
        HDFSStore("file:///user")


@pytest.mark.parametrize(
    ("path", "inside"),
    [
        ("/dbfs/tmp/a", "/dbfs/tmp/a"),
        ("dbfs:/tmp/a", "/dbfs/tmp/a"),
        ("file:/dbfs/tmp/a", "/dbfs/tmp/a"),
        ("file:///dbfs/tmp/a", "/dbfs/tmp/a"),
        ("dbfs://tmp/a", None),
        ("/tmp/a", None),
    ],
)
def test_paths_in_dbfs(monkeypatch: pytest.MonkeyPatch, path: str, inside: str | None) -> None:
    if inside is None:
        with pytest.raises(ValueError, match="is no path in DBFS"):
            DBFSLocalStore(path)
        return
    assert type(Store.create("/dbfs/tmp/a")) is FilesystemStore
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "17")
    store = Store.create(path)
    assert isinstance(store, DBFSLocalStore)
    assert store.get_train_data_path() == "dbfs:/tmp/a/intermediate_train_data"
    assert store.get_localized_path(store.get_runs_path()) == f"{inside}/runs"


def test_an_unknown_protocol() -> None:
    with pytest.raises(ValueError, match="nowhere://a"):
        Store.create("nowhere://a")
