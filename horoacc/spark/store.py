"""Where estimators keep the data of a DataFrame, checkpoints and logs.

Every rank and every executor must reach it: a folder that all machines share, HDFS, or an object
store that fsspec knows. `LocalStore` is enough if all executors are on the driver's machine.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import fsspec
import pyarrow.dataset
from fsspec.core import split_protocol


class Store:
    """What an estimator asks of a store."""

    @staticmethod
    def create(prefix_path: str, *args: Any, **kwargs: Any) -> Store:
        """Makes the store that a path asks for.

        Args:
            prefix_path: `hdfs://…`; on Databricks `dbfs:/…` or `/dbfs/…`; else any path or URL
                that fsspec knows.
            args: Of the store's class.
            kwargs: The same.
        """
        if HDFSStore.matches(prefix_path):
            return HDFSStore(prefix_path, *args, **kwargs)
        if "DATABRICKS_RUNTIME_VERSION" in os.environ and DBFSLocalStore.matches_dbfs(prefix_path):
            return DBFSLocalStore(prefix_path, *args, **kwargs)
        return FilesystemStore(prefix_path, *args, **kwargs)

    def get_train_data_path(self, idx: int | None = None) -> str:
        """Gives the URL of a data set to train on; `idx` numbers those that are in use."""
        raise NotImplementedError

    def get_val_data_path(self, idx: int | None = None) -> str:
        """Gives the URL of a data set to validate on."""
        raise NotImplementedError

    def get_test_data_path(self, idx: int | None = None) -> str:
        """Gives the URL of a data set to test on."""
        raise NotImplementedError

    def is_parquet_dataset(self, path: str) -> bool:
        """Says whether there is a Parquet data set."""
        raise NotImplementedError

    def get_parquet_dataset(self, path: str) -> pyarrow.dataset.Dataset:
        """Opens a Parquet data set."""
        raise NotImplementedError

    def saving_runs(self) -> bool:
        """Says whether checkpoints and logs are kept."""
        raise NotImplementedError

    def get_runs_path(self) -> str:
        """Gives the URL of the folder of all runs."""
        raise NotImplementedError

    def get_run_path(self, run_id: str) -> str:
        """Gives the URL of a run's folder."""
        raise NotImplementedError

    def get_checkpoint_path(self, run_id: str) -> str | None:
        """Gives the URL of the folder of a run's checkpoint; None: runs are not kept."""
        raise NotImplementedError

    def get_checkpoints(self, run_id: str, suffix: str = ".ckpt") -> list[str]:
        """Lists a run's files with a suffix."""
        raise NotImplementedError

    def get_logs_path(self, run_id: str) -> str | None:
        """Gives the URL of a run's logs; None: runs are not kept."""
        raise NotImplementedError

    def get_checkpoint_filename(self) -> str:
        """Gives the name of a checkpoint's file."""
        raise NotImplementedError

    def get_logs_subdir(self) -> str:
        """Gives the name of the folder of logs in a run's."""
        raise NotImplementedError

    def exists(self, path: str) -> bool:
        """Says whether there is a file or a folder."""
        raise NotImplementedError

    def read(self, path: str) -> bytes:
        """Reads a file."""
        raise NotImplementedError

    def write_text(self, path: str, text: str) -> None:
        """Writes a file."""
        raise NotImplementedError

    def get_local_output_dir_fn(self, run_id: str) -> Callable[[], AbstractContextManager[str]]:
        """Gives a maker of folders of the machine that calls it, for a run's files."""
        raise NotImplementedError

    def sync_fn(self, run_id: str) -> Callable[[str], None]:
        """Gives a function that copies such a folder into the run's."""
        raise NotImplementedError


class FilesystemStore(Store):
    """A store in a file system that fsspec knows.

    Attributes:
        fs: The file system.
        protocol: Its name in URLs.
    """

    def __init__(
        self,
        prefix_path: str,
        train_path: str | None = None,
        val_path: str | None = None,
        test_path: str | None = None,
        runs_path: str | None = None,
        save_runs: bool = True,
        storage_options: dict[str, Any] | None = None,
        checkpoint_filename: str | None = None,
    ) -> None:
        """Writes nothing yet.

        Args:
            prefix_path: A folder, or a URL of one.
            train_path: Of the data to train on; None: below the folder.
            val_path: The same of those to validate on.
            test_path: The same of those to test on.
            runs_path: The same of checkpoints and logs.
            save_runs: Whether to keep checkpoints and logs.
            storage_options: Of the file system.
            checkpoint_filename: The name of a checkpoint's file; None: "checkpoint".

        Raises:
            ValueError: fsspec does not know the URL's protocol.
        """
        self.storage_options = storage_options or {}
        self.protocol = split_protocol(prefix_path)[0] or "file"
        self.fs = self._open(prefix_path)
        self.prefix_path = self.get_full_path(prefix_path)
        self._paths = {
            name: self.get_full_path(given) if given else self._below(default)
            for name, given, default in (
                ("train", train_path, "intermediate_train_data"),
                ("val", val_path, "intermediate_val_data"),
                ("test", test_path, "intermediate_test_data"),
                ("runs", runs_path, "runs"),
            )
        }
        self._save_runs = save_runs
        self.checkpoint_filename = checkpoint_filename or "checkpoint"

    def _open(self, prefix_path: str) -> Any:
        try:
            return fsspec.core.url_to_fs(prefix_path, **self.storage_options)[0]
        except (ImportError, ValueError) as error:  # a package is missing; no such protocol
            raise ValueError(f"{prefix_path}: {error}") from None

    @classmethod
    def matches(cls, path: str) -> bool:
        """Says whether `Store.create` makes such a store for a path."""
        return True

    def get_filesystem(self) -> Any:
        """Gives the file system."""
        return self.fs

    def get_full_path(self, path: str) -> str:
        """Gives the URL of a path, which Spark takes."""
        if split_protocol(path)[0] is not None:
            return path
        return f"file://{os.path.abspath(path)}"

    def get_localized_path(self, path: str) -> str:
        """Gives the path of a URL, which the file system takes."""
        return str(self.fs._strip_protocol(path))

    def get_train_data_path(self, idx: int | None = None) -> str:
        """Gives the URL of a data set to train on; `idx` numbers those that are in use."""
        return self._numbered("train", idx)

    def get_val_data_path(self, idx: int | None = None) -> str:
        """Gives the URL of a data set to validate on."""
        return self._numbered("val", idx)

    def get_test_data_path(self, idx: int | None = None) -> str:
        """Gives the URL of a data set to test on."""
        return self._numbered("test", idx)

    def is_parquet_dataset(self, path: str) -> bool:
        """Says whether there is a Parquet data set."""
        try:
            return bool(self.get_parquet_dataset(path).files)
        except (OSError, ValueError):  # pyarrow's errors are among them
            return False

    def get_parquet_dataset(self, path: str) -> pyarrow.dataset.Dataset:
        """Opens a Parquet data set.

        Raises:
            FileNotFoundError: There is none.
        """
        return pyarrow.dataset.dataset(
            self.get_localized_path(path), filesystem=self.fs, format="parquet"
        )

    def saving_runs(self) -> bool:
        """Says whether checkpoints and logs are kept."""
        return self._save_runs

    def get_runs_path(self) -> str:
        """Gives the URL of the folder of all runs."""
        return self._paths["runs"]

    def get_run_path(self, run_id: str) -> str:
        """Gives the URL of a run's folder."""
        return f"{self.get_runs_path()}/{run_id}"

    def get_checkpoint_path(self, run_id: str) -> str | None:
        """Gives the URL of the folder of a run's checkpoint; None: runs are not kept."""
        return self.get_run_path(run_id) if self._save_runs else None

    def get_checkpoints(self, run_id: str, suffix: str = ".ckpt") -> list[str]:
        """Lists a run's files with a suffix."""
        files = self.fs.ls(self.get_localized_path(self.get_run_path(run_id)), detail=False)
        return sorted(name for name in files if name.endswith(suffix))

    def get_logs_path(self, run_id: str) -> str | None:
        """Gives the URL of a run's logs; None: runs are not kept."""
        return f"{self.get_run_path(run_id)}/{self.get_logs_subdir()}" if self._save_runs else None

    def get_checkpoint_filename(self) -> str:
        """Gives the name of a checkpoint's file."""
        return self.checkpoint_filename

    def get_logs_subdir(self) -> str:
        """Gives the name of the folder of logs in a run's."""
        return "logs"

    def exists(self, path: str) -> bool:
        """Says whether there is a file or a folder."""
        return bool(self.fs.exists(self.get_localized_path(path)))

    def read(self, path: str) -> bytes:
        """Reads a file."""
        return bytes(self.fs.cat_file(self.get_localized_path(path)))

    def write_text(self, path: str, text: str) -> None:
        """Writes a file."""
        where = self.get_localized_path(path)
        self.fs.makedirs(os.path.dirname(where), exist_ok=True)
        self.fs.pipe_file(where, text.encode())

    def get_local_output_dir_fn(self, run_id: str) -> Callable[[], AbstractContextManager[str]]:
        """Gives a maker of folders of the machine that calls it, for a run's files."""

        @contextlib.contextmanager
        def local_run_path() -> Iterator[str]:
            # Named by the process, so that the rank's task removes what a killed rank leaves.
            with tempfile.TemporaryDirectory(prefix=f"horoacc-run-{os.getpid()}-") as folder:
                yield folder

        return local_run_path

    def sync_fn(self, run_id: str) -> Callable[[str], None]:
        """Gives a function that copies such a folder into the run's."""

        def sync(folder: str) -> None:
            target = self.get_localized_path(self.get_run_path(run_id))
            for here, _, files in os.walk(folder):
                below = os.path.relpath(here, folder)
                there = target if below == "." else f"{target}/{below}"
                self.fs.makedirs(there, exist_ok=True)
                for name in files:
                    # Whole or not at all: a job may end while it writes.
                    self.fs.put_file(os.path.join(here, name), f"{there}/{name}.part")
                    self.fs.mv(f"{there}/{name}.part", f"{there}/{name}")

        return sync

    def _below(self, name: str) -> str:
        return f"{self.prefix_path.rstrip('/')}/{name}"

    def _numbered(self, name: str, idx: int | None) -> str:
        return self._paths[name] if idx is None else f"{self._paths[name]}.{idx}"


class LocalStore(FilesystemStore):
    """A store in a folder of this machine, which all executors share with the driver."""


class HDFSStore(FilesystemStore):
    """A store in HDFS, through pyarrow and libhdfs. No HDFS has been tried."""

    def __init__(
        self,
        prefix_path: str,
        host: str | None = None,
        port: int | None = None,
        user: str | None = None,
        kerb_ticket: str | None = None,
        extra_conf: dict[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        """Connects to the name node.

        Args:
            prefix_path: `hdfs://namenode:8020/path`, `hdfs:///path` or `/path`.
            host: The name node; None: that of the URL, or of Hadoop's configuration.
            port: The same.
            user: The user there; None: this one.
            kerb_ticket: The path of a Kerberos ticket cache.
            extra_conf: More of Hadoop's configuration.
            kwargs: As of `FilesystemStore`.

        Raises:
            ValueError: The path is a URL of something else.
        """
        protocol, path = split_protocol(prefix_path)
        if protocol not in (None, "hdfs"):
            raise ValueError(f"{prefix_path} is no path in HDFS, such as hdfs://namenode:8020/path")
        self._root = "hdfs://"
        if protocol is not None and not path.startswith("/"):
            self._root += path.partition("/")[0]
        given = {
            "host": host, "port": port, "user": user, "kerb_ticket": kerb_ticket,
            "extra_conf": extra_conf,
        }  # fmt: skip
        kwargs["storage_options"] = {
            **{name: value for name, value in given.items() if value is not None},
            **(kwargs.get("storage_options") or {}),
        }
        full = prefix_path if protocol else f"{self._root}{prefix_path}"
        super().__init__(full, **kwargs)

    @classmethod
    def matches(cls, path: str) -> bool:
        """Says whether `Store.create` makes such a store for a path."""
        return path.startswith("hdfs://")

    def get_full_path(self, path: str) -> str:
        """Gives the URL of a path, which Spark takes."""
        return path if split_protocol(path)[0] else f"{self._root}{path}"


class DBFSLocalStore(FilesystemStore):
    """A store in Databricks' file system, where it is mounted at /dbfs. It has not been tried."""

    def __init__(self, prefix_path: str, **kwargs: Any) -> None:
        """Writes nothing yet.

        Args:
            prefix_path: `/dbfs/path`, `dbfs:/path`, `file:/dbfs/path` or `file:///dbfs/path`.
            kwargs: As of `FilesystemStore`.

        Raises:
            ValueError: The path is none of these.
        """
        super().__init__(self.normalize_path(prefix_path), **kwargs)

    @staticmethod
    def matches_dbfs(path: str) -> bool:
        """Says whether a path is in Databricks' file system."""
        dbfs = path.startswith("dbfs:/") and not path.startswith("dbfs://")
        return dbfs or path.startswith(("/dbfs/", "file:/dbfs/", "file:///dbfs/"))

    @classmethod
    def normalize_path(cls, path: str) -> str:
        """Gives the path below /dbfs of any form of a path."""
        if not cls.matches_dbfs(path):
            raise ValueError(f"{path} is no path in DBFS, such as /dbfs/path or dbfs:/path")
        inside = path.removeprefix("dbfs:").removeprefix("file://").removeprefix("file:")
        return inside if inside.startswith("/dbfs/") else f"/dbfs{inside}"

    def get_full_path(self, path: str) -> str:
        """Gives the URL of a path, which Spark takes: `dbfs:/…` is that of `/dbfs/…`."""
        local = super().get_full_path(path)
        return local.replace("file:///dbfs/", "dbfs:/", 1)

    def get_localized_path(self, path: str) -> str:
        """Gives the path of a URL, which the file system takes."""
        return self.normalize_path(path) if self.matches_dbfs(path) else str(path)
