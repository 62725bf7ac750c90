"""Horovod's questions about the build of HoroACC and about the transports of this job."""

from __future__ import annotations

import os

from horoacc import cuda_plugin, mpi_plugins, process, settings

__all__ = [
    "ccl_built", "cuda_built", "ddl_built", "gloo_built", "gloo_enabled", "mpi_built",
    "mpi_enabled", "mpi_threads_supported", "nccl_built", "rocm_built",
]  # fmt: skip

_MPI_THREAD_MULTIPLE = 3


def mpi_built() -> bool:
    """Says whether an MPI plug-in was built.

    Returns:
        True if so.
    """
    built = any(mpi_plugins.plugin(flavour).is_file() for flavour in mpi_plugins.FLAVOURS)
    return built or mpi_enabled()


def mpi_enabled() -> bool:
    """Says whether this job runs over MPI.

    Returns:
        True after an `init()` that did so.
    """
    return process.bootstrap() == "mpi"


def mpi_threads_supported() -> bool:
    """Says whether other threads may use MPI while the engine does.

    Returns:
        True if MPI was initialised with MPI_THREAD_MULTIPLE.

    Raises:
        ValueError: `init()` was not called, or the job does not run over MPI.
    """
    engine = process.engine()
    if not mpi_enabled():
        raise ValueError("Horovod MPI is not enabled; this job does not run over MPI.")
    return engine.mpi_thread_level >= _MPI_THREAD_MULTIPLE


def gloo_built() -> bool:
    """Says whether jobs can run without MPI: they can, over TCP.

    Returns:
        True.
    """
    return True


def gloo_enabled() -> bool:
    """Says whether this job runs without MPI.

    Returns:
        True after an `init()` that did so.
    """
    return process.bootstrap() in ("tcp", "none")


def nccl_built() -> int:
    """Gives the version of NCCL in use.

    Returns:
        0: none is.
    """
    return 0


def ddl_built() -> bool:
    """Says whether IBM's DDL is in use.

    Returns:
        False.
    """
    return False


def ccl_built() -> bool:
    """Says whether oneCCL is in use.

    Returns:
        False.
    """
    return False


def cuda_built() -> bool:
    """Says whether collectives take CUDA tensors, on a machine that has a GPU.

    Returns:
        True if the CUDA plug-in was built, or HOROACC_CUDA_PLUGIN names another.
    """
    return cuda_plugin.LIBRARY.is_file() or bool(settings.read(os.environ)["cuda_plugin"])


def rocm_built() -> bool:
    """Says whether ROCm code is in use.

    Returns:
        False.
    """
    return False
