"""The actor that is a rank of an executor with a fixed number of workers."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import ray

from horoacc import basics, dropin
from horoacc.launcher.places import MeetingPoint
from horoacc.launcher.processes import end_with_parent
from horoacc.ray import ray_logger

# <malloc.h>. A launcher sets variables for the same, which the C library reads when a process
# starts: memory that a training step frees is kept for the next one.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3


class Seat(NamedTuple):
    """Where a worker is, and where the others would meet it as rank 0."""

    node: str
    host: str
    address: str
    master_port: int
    gpus: list[str]


class BaseHorovodWorker:
    """A process of an executor. Its executable, if there is one, is the argument of `execute`."""

    executable: Any = None

    def __init__(self, world_rank: int = 0, world_size: int = 1) -> None:
        """Puts its place into the environment.

        Args:
            world_rank: Its rank.
            world_size: The number of ranks.
        """
        os.environ["HOROVOD_HOSTNAME"] = self.hostname()
        os.environ["HOROVOD_RANK"] = str(world_rank)
        os.environ["HOROVOD_SIZE"] = str(world_size)
        self._meeting: MeetingPoint | None = None

    def hostname(self) -> str:
        """Gives the name of its machine.

        Returns:
            The name.
        """
        return socket.gethostname()

    def node_id(self) -> str:
        """Gives Ray's number of its node.

        Returns:
            Hexadecimal digits.
        """
        return str(ray.get_runtime_context().get_node_id())

    def get_gpu_ids(self) -> list[str]:
        """Gives the GPUs that Ray has assigned to it.

        Returns:
            Their ids.
        """
        return list(ray.get_runtime_context().get_accelerator_ids().get("GPU", []))

    def update_env_vars(self, env_vars: Mapping[str, object]) -> None:
        """Sets variables.

        Args:
            env_vars: Their values are written as text.
        """
        os.environ.update({name: str(value) for name, value in env_vars.items()})

    def env_vars(self) -> dict[str, str]:
        """Gives the variables of its process.

        Returns:
            A copy.
        """
        return dict(os.environ)

    def start_executable(
        self,
        executable_cls: type | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        """Makes the executable.

        Args:
            executable_cls: Its class; None: there is none.
            executable_args: For the class.
            executable_kwargs: For the class.
        """
        if executable_cls is not None:
            self.executable = executable_cls(*executable_args or (), **executable_kwargs or {})

    def execute(self, func: Callable[[Any], Any]) -> Any:
        """Calls a function.

        Args:
            func: Gets the executable, or None.

        Returns:
            What it returns.
        """
        return func(self.executable)

    def leave(self) -> None:
        """Leaves the job, if it is in one, so that no other rank waits for it."""
        basics.shutdown()

    def set_queue(self, queue: Any) -> None:
        """Says where `ray_logger.log` goes.

        Args:
            queue: As of `ray_logger.configure`.
        """
        ray_logger.configure(queue)

    def meet(self) -> Seat:
        """Listens where the other ranks would meet it as rank 0.

        Returns:
            Its node and addresses.
        """
        host = ray.util.get_node_ip_address()
        self._meeting = meeting = MeetingPoint(host)
        gpus = self.get_gpu_ids()
        return Seat(self.node_id(), host, meeting.address, meeting.master_port, gpus)

    def take_place(self, variables: Mapping[str, str], as_horovod: bool) -> None:
        """Becomes a rank.

        Args:
            variables: Its place and the job's.
            as_horovod: Whether `import horovod` gives HoroACC.
        """
        assert self._meeting is not None
        end_with_parent()  # Ray leaves actors behind when the raylet of their node is killed
        for name in ("HOROACC_COORDINATOR", "HOROACC_WORKER", "HOROACC_RENDEZVOUS_FD"):
            os.environ.pop(name, None)  # of a job in which Ray was started
        os.environ.update(variables)
        if variables["HOROACC_RANK"] == "0" and variables["HOROACC_SIZE"] != "1":
            os.environ["HOROACC_RENDEZVOUS_FD"] = str(self._meeting.lend())
        else:
            self._meeting.close()
        with contextlib.suppress(AttributeError):  # another C library than glibc
            libc = ctypes.CDLL(None)
            libc.mallopt(_MMAP_THRESHOLD, 32 << 20)
            libc.mallopt(_TRIM_THRESHOLD, 1 << 30)
        if as_horovod:
            dropin.install_as_horovod()
