"""Processes that an mpirun started: Open MPI's, or one that speaks PMI (MPICH, Intel MPI)."""

from __future__ import annotations

from collections.abc import Mapping

from horoacc.launcher.environment.placement import Placement, by_host, count, number


class OpenMpi:
    """Recognises OMPI_COMM_WORLD_RANK and its companions."""

    @staticmethod
    def detect(environ: Mapping[str, str]) -> Placement | None:
        """The placement, or None if Open MPI did not start this process."""
        if "OMPI_COMM_WORLD_RANK" not in environ:
            return None
        return _mpi_placement(
            "openmpi",
            number(environ, "OMPI_COMM_WORLD_RANK"),
            count(environ, "OMPI_COMM_WORLD_SIZE"),
            number(environ, "OMPI_COMM_WORLD_LOCAL_RANK", 0),
            count(environ, "OMPI_COMM_WORLD_LOCAL_SIZE", 1),
        )


class Mpich:
    """Recognises PMI_RANK and PMI_SIZE, which Hydra and Intel MPI set."""

    @staticmethod
    def detect(environ: Mapping[str, str]) -> Placement | None:
        """The placement, or None if no PMI launcher started this process."""
        if "PMI_RANK" not in environ or "PMI_SIZE" not in environ:
            return None
        rank, size = number(environ, "PMI_RANK"), count(environ, "PMI_SIZE")
        local_size = count(environ, "MPI_LOCALNRANKS", size)
        return _mpi_placement(
            "mpich", rank, size, number(environ, "MPI_LOCALRANKID", rank % local_size), local_size
        )


def _mpi_placement(
    launcher: str, rank: int, size: int, local_rank: int, local_size: int
) -> Placement:
    cross_rank, cross_size = by_host(rank, size, local_rank, local_size)
    return Placement(
        rank=rank,
        size=size,
        local_rank=local_rank,
        local_size=local_size,
        cross_rank=cross_rank,
        cross_size=cross_size,
        launcher=launcher,
        bootstrap="none" if size == 1 else "mpi",
    )
