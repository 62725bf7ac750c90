"""A process that no launcher started: a job of one rank."""

from __future__ import annotations

from collections.abc import Mapping

from horoacc.launcher.environment.placement import Placement


class Single:
    """Recognises everything else."""

    @staticmethod
    def detect(environ: Mapping[str, str]) -> Placement | None:
        """Rank 0 of 1."""
        del environ
        return Placement(0, 1, 0, 1, 0, 1, "single", "none")
