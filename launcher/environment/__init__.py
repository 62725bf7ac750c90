"""Recognises the launcher of this process, and finds the other ranks."""

from __future__ import annotations

import os
from collections.abc import Mapping

from horoacc.launcher.environment import job, launchers, slurm, torchrun
from horoacc.launcher.environment.placement import Placement, PlacementError, Rendezvous
from horoacc.launcher.shim import SECRET_FILE

__all__ = ["LAUNCHERS", "Placement", "PlacementError", "Rendezvous", "detect", "rendezvous"]

# In the order in which they are asked: a launcher inside another's job (horoaccrun in a Slurm
# allocation) before the outer one, and torch's variables after the MPI launchers, under which a
# script may export them for torch.distributed.
LAUNCHERS = (
    launchers.horoaccrun,
    launchers.torchrun,
    launchers.open_mpi,
    launchers.mpich,
    launchers.kubernetes,
    launchers.torch_variables,
    launchers.kubeflow,
    launchers.slurm,
)


def detect(environ: Mapping[str, str] | None = None) -> Placement:
    """The placement that the first matching launcher gives; without any, rank 0 of 1.

    Args:
        environ: Variables; None: this process's.

    Raises:
        PlacementError: A launcher's variables contradict each other; a ValueError.
    """
    variables = os.environ if environ is None else environ
    for launcher in LAUNCHERS:
        if placement := launcher(variables):
            return placement
    return Placement(0, 1, 0, 1, 0, 1, "single", "none")


def rendezvous(
    placement: Placement, environ: Mapping[str, str] | None = None, seconds: float = 60.0
) -> Rendezvous:
    """Finds rank 0. Every rank calls it once for every `init`, in the same order.

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
    variables = os.environ if environ is None else environ
    place = variables.get(SECRET_FILE, "")
    if place and placement.size > 1:  # it was not read: horoacc.job_secret
        raise PlacementError(
            f"the job's secret is in {SECRET_FILE}={place} (process:descriptor), and this process "
            "can read neither its own descriptor nor that one: a program between closed it, and "
            "this process is another user's, or sees other process numbers"
        )
    if placement.bootstrap != "tcp":
        return Rendezvous("", None, variables.get("HOROACC_SECRET", ""))
    if placement.launcher == "kubeflow":
        masters = {name: variables[f"PET_{name}"] for name in ("MASTER_ADDR", "MASTER_PORT")}
        return torchrun.rendezvous(placement, masters, seconds)
    if placement.launcher == "torchrun":
        return torchrun.rendezvous(placement, variables, seconds)
    host, _, port = variables.get("HOROACC_RENDEZVOUS", "").rpartition(":")
    if placement.launcher == "slurm" or port == "slurm":
        return slurm.rendezvous(placement, variables, seconds, host if port == "slurm" else "")
    return job.rendezvous(placement, variables)
