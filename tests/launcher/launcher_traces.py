"""The traces of a job outside of its processes: files in /dev/shm and named sockets.

Other jobs may run on the machine: a job's own are those that its processes have mapped or opened.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from launcher_jobs import END_SECONDS, Job


@dataclass
class Traces:
    """The traces of one job."""

    files: set[Path]
    sockets: set[str]

    def expect_gone(self, job: Job) -> None:
        """Waits for their end."""
        job.wait_until(
            lambda: not [path for path in self.files if path.exists()],
            f"the removal of {self.files}",
            END_SECONDS,
        )
        job.wait_until(
            lambda: not self.sockets & {line.split()[7] for line in unix_sockets()},
            f"the end of {self.sockets}",
            END_SECONDS,
        )


def top(path: Path) -> Path:
    """The entry of /dev/shm that a file lies in."""
    return Path(*path.parts[:4])


def traces(job: Job) -> Traces:
    """Asks the processes of a job, while they live."""
    files = set()
    inodes = set()
    for pid, _ in job.alive():
        process = Path("/proc", str(pid))
        try:
            mapped = re.findall(r" (/dev/shm/\S+)$", (process / "maps").read_text(), re.MULTILINE)
            opened = [str(fd.readlink()) for fd in (process / "fd").iterdir()]
        except OSError:
            continue
        files |= {top(Path(name)) for name in (*mapped, *opened) if name.startswith("/dev/shm/")}
        inodes |= {name[8:-1] for name in opened if name.startswith("socket:[")}
    sockets = {line.split()[7] for line in unix_sockets() if line.split()[6] in inodes}
    return Traces(files, sockets)


def unix_sockets() -> list[str]:
    """The lines of sockets that have a name."""
    lines = Path("/proc/net/unix").read_text().splitlines()[1:]
    return [line for line in lines if len(line.split()) > 7]
