"""One way to call every system: what a rank needs for an allreduce in place, without anything that
the system's fastest call would not need itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
Call = Callable[[], Any]


class Adapter(Protocol):
    """A system whose job this rank has joined."""

    rank: int
    size: int

    def allocate(self, count: int, memory: str) -> Any:
        """Makes a one-dimensional float32 buffer in this kind of memory."""

    def array(self, buffer: Any) -> Array:
        """Shows a buffer to NumPy."""

    def call(self, buffer: Any, how: str) -> Call:
        """Prepares a sum over the ranks; the call returns once it is done. It gives the result if
        that is not in the buffer."""

    def barrier(self) -> None:
        """Waits for the other ranks."""

    def close(self) -> None:
        """Leaves the job."""


class HoroaccAdapter:
    """HoroACC: `memory` is arena or private, `how` is in place, blocking, named, c10d, empty (the
    same call of a group whose backend does nothing), or eager or graph for TensorFlow, which takes
    copies that it allocates itself, as it does gradients.
    """

    def __init__(self) -> None:
        import torch

        import horoacc
        import horoacc.torch

        torch.set_num_threads(1)
        self._torch, self._plain, self.hvd = torch, horoacc, horoacc.torch
        self._reduce_in_graph: Any = None
        self._copies: dict[int, Any] = {}
        self._empty: Any = None
        # A benchmark that measures what happens before init() calls it later.
        if "BENCH_LATE" in os.environ:
            self.rank, self.size = int(os.environ["HOROACC_RANK"]), int(os.environ["HOROACC_SIZE"])
        else:
            self.hvd.init()
            self.rank, self.size = self.hvd.rank(), self.hvd.size()

    def allocate(self, count: int, memory: str) -> Any:
        if memory == "private":
            return np.zeros(count, np.float32)
        buffer = self._torch.empty(count)
        if memory == "arena" and not self._in_arena(buffer.data_ptr()):
            raise RuntimeError(f"torch did not allocate {count} elements in the arena")
        return buffer

    def _in_arena(self, pointer: int) -> bool:
        from horoacc import basics

        return basics.engine().arena_contains(pointer)

    def array(self, buffer: Any) -> Array:
        found: Array = buffer if isinstance(buffer, np.ndarray) else buffer.numpy()
        return found

    def call(self, buffer: Any, how: str) -> Call:
        hvd: Any = self._plain if isinstance(buffer, np.ndarray) else self.hvd
        sum_ = hvd.Sum
        if how == "blocking":
            return lambda: hvd.allreduce(buffer, op=sum_)
        if how == "named":
            return lambda: hvd.allreduce(buffer, op=sum_, name="the same every time")
        if how in ("eager", "graph"):
            return self._tensorflow(buffer, how)
        if how in ("c10d", "empty"):
            # As dist.all_reduce calls it; the options of a group say "asynchronous" by default.
            options = self._torch.distributed.AllreduceOptions()
            options.asyncOp = False
            group = self._group() if how == "c10d" else self._empty_group()
            reduce, tensors = group.allreduce, [buffer]
            return lambda: reduce(tensors, options).wait()
        return lambda: hvd.allreduce_(buffer, op=sum_)

    def _tensorflow(self, buffer: Array, how: str) -> Call:
        import tensorflow as tf

        import horoacc.tensorflow as hvd

        if not self._reduce_in_graph:
            self._reduce_in_graph = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum))
        where = buffer.ctypes.data
        tensor = self._copies.get(where)
        if tensor is None or not np.array_equal(tensor.numpy(), buffer):
            # A constant may be in memory of NumPy's.
            tensor = self._copies[where] = tf.add(tf.constant(buffer), 0.0)
        if how == "graph":
            return lambda: self._reduce_in_graph(tensor)
        return lambda: hvd.allreduce(tensor, op=hvd.Sum)

    def _group(self) -> Any:
        import torch.distributed as dist

        if not dist.is_initialized():
            dist.init_process_group("horoacc")
        return dist.group.WORLD

    def _empty_group(self) -> Any:
        import torch.distributed as dist

        if self._empty is None:
            import_module("torch.testing._internal.distributed.fake_pg")  # registers the backend
            self._group()  # of which every group is a part
            self._empty = dist.new_group(backend="fake")
        return self._empty

    def barrier(self) -> None:
        self.hvd.barrier()

    def close(self) -> None:
        self.hvd.shutdown()


class GlooAdapter:
    """torch.distributed's Gloo, called below its Python front, which costs more than the call."""

    def __init__(self) -> None:
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        self.rank, self.size = int(os.environ["BENCH_RANK"]), int(os.environ["BENCH_SIZE"])
        meeting = f"file://{os.environ['BENCH_MEETING']}"
        dist.init_process_group("gloo", init_method=meeting, rank=self.rank, world_size=self.size)
        self._torch, self._dist, self._group = torch, dist, dist.group.WORLD

    def allocate(self, count: int, memory: str) -> Any:
        # NumPy asks the kernel for huge pages, torch does not.
        return self._torch.from_numpy(np.zeros(count, np.float32))

    def array(self, buffer: Any) -> Array:
        found: Array = buffer.numpy()
        return found

    def call(self, buffer: Any, how: str) -> Call:
        reduce, tensors = self._group.allreduce, [buffer]  # type: ignore[union-attr]
        return lambda: reduce(tensors).wait()

    def barrier(self) -> None:
        self._dist.barrier()

    def close(self) -> None:
        self._dist.destroy_process_group()


class MpiAdapter:
    """Open MPI or MPICH through mpi4py, which finds the one that MPI4PY_MPIABI names."""

    def __init__(self) -> None:
        import mpi4py

        mpi4py.rc.threads = False  # locks that nobody needs
        from mpi4py import MPI

        self._mpi, self._comm = MPI, MPI.COMM_WORLD
        self.rank, self.size = self._comm.rank, self._comm.size

    def allocate(self, count: int, memory: str) -> Array:
        return np.zeros(count, np.float32)

    def array(self, buffer: Any) -> Array:
        found: Array = buffer
        return found

    def call(self, buffer: Any, how: str) -> Call:
        reduce, in_place = self._comm.Allreduce, self._mpi.IN_PLACE
        described = [buffer, buffer.size, self._mpi.FLOAT]
        return lambda: reduce(in_place, described)

    def barrier(self) -> None:
        self._comm.Barrier()

    def close(self) -> None:
        self._mpi.Finalize()


class BoundAdapter:
    """No system: the machine's memory itself. See benchmarks.memory_bound."""

    rank, size = 0, 1

    def allocate(self, count: int, memory: str) -> Array:
        raise NotImplementedError("the bound has buffers of its own")

    def array(self, buffer: Any) -> Array:
        raise NotImplementedError("the bound has buffers of its own")

    def call(self, buffer: Any, how: str) -> Call:
        raise NotImplementedError("the bound has a kernel of its own")

    def barrier(self) -> None:
        pass

    def close(self) -> None:
        pass


def open_adapter(system: str) -> Adapter:
    """Joins a system's job.

    Args:
        system: As `benchmarks.systems.launch` calls it.

    Returns:
        The adapter.
    """
    adapters: dict[str, Callable[[], Adapter]] = {
        "horoacc": HoroaccAdapter,
        "horoacc over mpi": HoroaccAdapter,
        "gloo": GlooAdapter,
        "openmpi": MpiAdapter,
        "mpich": MpiAdapter,
        "bound": BoundAdapter,
    }
    return adapters[system]()
