"""Recognises the launcher of this process, and finds the other ranks.

One small class for each launcher, asked in this order: horoaccrun's own variables, torchrun, Open
MPI, MPICH (PMI), torch's variables without torchrun, Slurm, and last a process that is alone. A
launcher inside another's job (horoaccrun in a Slurm allocation) is asked before the outer one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from horoacc.launcher.environment import job, torchrun
from horoacc.launcher.environment.job import HoroaccJob
from horoacc.launcher.environment.mpi import Mpich, OpenMpi
from horoacc.launcher.environment.placement import (
    Placement,
    PlacementError,
    Rendezvous,
    own_environ,
)
from horoacc.launcher.environment.slurm import Slurm
from horoacc.launcher.environment.torchrun import Torchrun, TorchVariables

__all__ = ["LAUNCHERS", "Placement", "PlacementError", "Rendezvous", "detect", "rendezvous"]


class _Launcher(Protocol):
    @staticmethod
    def detect(environ: Mapping[str, str]) -> Placement | None:
        """The placement, or None if another launcher started the process."""


class Single:
    """A process that no launcher started: a job of one rank."""

    @staticmethod
    def detect(environ: Mapping[str, str]) -> Placement | None:
        """Rank 0 of 1."""
        del environ
        return Placement(0, 1, 0, 1, 0, 1, "single", "none")


LAUNCHERS: tuple[_Launcher, ...] = (
    HoroaccJob,
    Torchrun,
    OpenMpi,
    Mpich,
    TorchVariables,
    Slurm,
    Single,
)


def detect(environ: Mapping[str, str] | None = None) -> Placement:
    """Recognises the launcher.

    Args:
        environ: Variables; None: this process's.

    Returns:
        The placement that the first matching launcher gives; without any, rank 0 of 1.

    Raises:
        PlacementError: A launcher's variables contradict each other; a ValueError.
    """
    variables = own_environ(environ)
    for launcher in LAUNCHERS:
        if placement := launcher.detect(variables):
            return placement
    raise AssertionError("Single recognises every process")


def rendezvous(
    placement: Placement, environ: Mapping[str, str] | None = None, seconds: float = 60.0
) -> Rendezvous:
    """Finds rank 0.

    Every rank calls it once for every `init`, in the same order.

    Args:
        placement: The result of `detect`.
        environ: Variables; None: this process's.
        seconds: How long to wait for the other ranks.

    Returns:
        Address, listening socket and secret; empty for one rank, or for a rendezvous through MPI
        (there the secret is the launcher's, if it gave one).

    Raises:
        PlacementError: Something is missing, or rank 0 did not answer in time.
    """
    variables = own_environ(environ)
    if placement.bootstrap != "tcp":
        return Rendezvous("", None, variables.get("HOROACC_SECRET", ""))
    if placement.launcher == "torchrun":
        return torchrun.rendezvous(placement, variables, seconds)
    return job.rendezvous(placement, variables)
