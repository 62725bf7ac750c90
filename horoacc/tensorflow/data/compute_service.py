"""Horovod's way to TensorFlow's data service: one job prepares the data, another trains with it.

The preparing job (`compute_worker`) runs the service's workers, and its dispatchers unless the
training job does; a configuration file tells the training job where they are.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

import horoacc.tensorflow as hvd
from horoacc.tensorflow.data.one_address import hear_only
from horoacc.tensorflow.data.registry import Addresses, ComputeClient

_SIDES = ("compute", "training")


@dataclass(frozen=True)
class TfDataServiceConfig:
    """Where a data service is, and how large.

    Attributes:
        dispatchers: How many dispatchers it has.
        workers_per_dispatcher: How many workers each has.
        dispatcher_side: Which job runs the dispatchers, "compute" or "training".
        addresses: Where the service's registry can be reached.
        key: The registry's key.
        timeout: Seconds that one part of it waits for another.
    """

    dispatchers: int
    workers_per_dispatcher: int
    dispatcher_side: str
    addresses: Addresses
    key: bytes
    timeout: int = 60

    def __post_init__(self) -> None:
        if self.dispatcher_side not in _SIDES:
            raise ValueError(
                f"dispatcher_side must be 'compute' or 'training', not {self.dispatcher_side!r}."
            )
        if self.dispatchers < 1 or self.workers_per_dispatcher < 1:
            raise ValueError("A data service has at least one dispatcher, and one worker for each.")

    def compute_client(self, verbose: int = 1) -> ComputeClient:
        """Makes a client of the registry.

        Args:
            verbose: Accepted for Horovod's sake; not used.

        Returns:
            The client; its `shutdown()` ends the preparing job.
        """
        del verbose
        return ComputeClient(self.addresses, self.key, self.timeout)

    def to_dict(self) -> dict[str, Any]:
        """Gives the configuration as JSON can hold it."""
        return asdict(self) | {"key": self.key.hex()}

    @staticmethod
    def from_dict(config: Mapping[str, Any]) -> TfDataServiceConfig:
        """Reads the result of `to_dict`.

        Args:
            config: The dictionary.

        Returns:
            The configuration.
        """
        return TfDataServiceConfig(**{**config, "key": bytes.fromhex(config["key"])})

    def write(self, filename: str) -> None:
        """Writes a file that only this user can read, because the key is in it.

        Args:
            filename: The file; it appears whole or not at all.
        """
        path = Path(filename)
        handle, scratch = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "w") as file:
            json.dump(self.to_dict(), file)
        Path(scratch).replace(path)

    @staticmethod
    def read(filename: str, wait_for_file_creation: bool = False) -> TfDataServiceConfig:
        """Reads a file.

        Args:
            filename: The file.
            wait_for_file_creation: Wait until there is one, without a limit.

        Returns:
            The configuration.

        Raises:
            FileNotFoundError: There is none.
        """
        path = Path(filename)
        while wait_for_file_creation and not path.exists():
            time.sleep(0.1)
        return TfDataServiceConfig.from_dict(json.loads(path.read_text()))


def _dispatcher(client: ComputeClient, number: int) -> Any:
    """Starts a dispatcher and registers it."""
    service = tf.data.experimental.service
    server = service.DispatchServer(service.DispatcherConfig(port=0))
    port, here = int(server.target.rpartition(":")[2]), client.local_address()
    hear_only(port, here)
    client.register_dispatcher(number, f"{here}:{port}")
    return server


@contextlib.contextmanager
def tf_data_service(compute_config: TfDataServiceConfig, rank: int) -> Iterator[str]:
    """Gives a training rank the address of its dispatcher, for `tf.data.experimental.service`.

    With `dispatcher_side="training"` the first ranks run the dispatchers while the context lasts.

    Args:
        compute_config: Which service.
        rank: This process's rank in the training job; ranks share the dispatchers in turn.

    Yields:
        The dispatcher's host and port.

    Raises:
        TimeoutError: A part of the service did not come in time.
        ConnectionError: The preparing job is not there.
    """
    client = compute_config.compute_client()
    server = None
    if compute_config.dispatcher_side == "training" and rank < compute_config.dispatchers:
        server = _dispatcher(client, rank)
    try:
        number = rank % compute_config.dispatchers
        address = client.wait_for_dispatcher_registration(number)
        client.wait_for_dispatcher_worker_registration(number)
        yield address
    finally:
        if server is not None:
            server._stop()


def send_to_data_service(
    dataset: Any,
    compute_config: TfDataServiceConfig,
    rank: int,
    size: int | None = None,
    processing_mode: str = "distributed_epoch",
    reuse_dataset: bool = False,
    round_robin: bool = False,
) -> Any:
    """Has a data service compute a dataset; also a method of `tf.data.Dataset`.

    Args:
        dataset: The dataset; the service's workers run its functions.
        compute_config: Which service.
        rank: This process's rank in the training job.
        size: The ranks of the training job; needed for `round_robin`.
        processing_mode: As for `tf.data.experimental.service.distribute`.
        reuse_dataset: Whether the ranks of a dispatcher share one pass over the dataset; otherwise
            each has its own.
        round_robin: Whether the ranks get elements in turn; needs `reuse_dataset` and one
            dispatcher.

    Returns:
        The dataset as the service gives it.

    Raises:
        ValueError: The arguments do not fit together.
        TimeoutError: A part of the service did not come in time.
    """
    if round_robin and not reuse_dataset:
        raise ValueError("round_robin needs reuse_dataset=True.")
    if round_robin and size is None:
        raise ValueError("round_robin needs the size of the training job.")
    if round_robin and compute_config.dispatchers > 1:
        raise ValueError("round_robin needs a single dispatcher.")
    # A dispatcher of this process serves as long as the dataset may be read.
    context = contextlib.ExitStack()
    address = context.enter_context(tf_data_service(compute_config, rank))
    atexit.register(context.close)
    return dataset.apply(
        tf.data.experimental.service.distribute(
            processing_mode=processing_mode, service=f"grpc://{address}",
            job_name="job" if reuse_dataset else None,
            consumer_index=rank if round_robin else None,
            num_consumers=size if round_robin else None,
        )
    )  # fmt: skip


tf.data.Dataset.send_to_data_service = send_to_data_service


def compute_worker_fn(compute_config: TfDataServiceConfig) -> None:
    """Is a rank of the preparing job: a worker until the service is ended.

    Args:
        compute_config: Which service.

    Raises:
        ValueError: The job has not the ranks that the configuration needs.
        TimeoutError: A part of the service did not come in time.
    """
    hvd.init()
    wanted = compute_config.dispatchers * compute_config.workers_per_dispatcher
    if hvd.size() != wanted:
        raise ValueError(f"This data service needs {wanted} ranks, but the job has {hvd.size()}.")
    client = compute_config.compute_client()
    service = tf.data.experimental.service
    server = None
    if compute_config.dispatcher_side == "compute" and hvd.rank() < compute_config.dispatchers:
        server = _dispatcher(client, hvd.rank())
    number = hvd.rank() % compute_config.dispatchers
    address = client.wait_for_dispatcher_registration(number)
    here = client.local_address()
    worker = service.WorkerServer(
        service.WorkerConfig(dispatcher_address=address, worker_address=f"{here}:%port%")
    )
    hear_only(int(worker._address.rpartition(":")[2]), here)
    client.register_worker_for_dispatcher(number)
    client.wait_for_shutdown()
    worker._stop()
    if server is not None:
        server._stop()
