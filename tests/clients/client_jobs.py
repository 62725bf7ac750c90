"""Jobs of two ranks, as a user of each launcher starts them, and what the ranks have trained."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import torch

SCRIPTS = Path(__file__).parent / "scripts"
BIN = Path(sys.executable).parent
SECONDS = 240
RANKS = 2
AUTO = ["-m", "horoacc.auto"]
PYTHON = [sys.executable]
# What comes before the script, or before AUTO and the script.
LAUNCHERS: dict[str, list[str]] = {
    "horoaccrun": [str(BIN / "horoaccrun"), "--mpirun", str(BIN / "mpirun"), "-np", "2", *PYTHON],
    "tcp": [str(BIN / "horoaccrun"), "--tcp", "-np", "2", *PYTHON],
    "torchrun": [str(BIN / "torchrun"), "--standalone", "--nproc-per-node", "2"],
}
Told = dict[str, list[torch.Tensor]]


@dataclass(frozen=True)
class Client:
    """A script of a client's, and what starts it."""

    script: str
    arguments: tuple[str, ...] = ()
    own: tuple[str, ...] = ()  # the client's own launcher, with a place for a {port}
    own_auto: tuple[str, ...] = ()  # the same with `horoacc.auto`, if it takes modules another way
    own_arguments: tuple[str, ...] = ()
    ways: tuple[str, ...] = ("horoacc", "auto")  # the script's argument: a name, or `auto`
    launchers: tuple[str, ...] = ("horoaccrun", "tcp", "torchrun")
    oracle: str = "torchrun"
    files: tuple[str, ...] = ("parameters",)
    late: str = (
        ""  # what the client says if its own daemons start too slowly: a job is tried thrice
    )
    environ: dict[str, str] = field(default_factory=dict, hash=False)

    def command(self, launcher: str, way: str) -> list[str]:
        """The command line; the way is `gloo` without HoroACC."""
        auto = AUTO if way == "auto" else []
        script = [str(SCRIPTS / self.script), way, *self.arguments]
        if launcher != "own":
            start = LAUNCHERS[launcher]
            if way == "horovod" and "-np" in start:
                start = [start[0], "--as-horovod", *start[1:]]
            return [*start, *auto, *script]
        script += self.own_arguments
        own = self.own_auto if auto and self.own_auto else [*self.own, *auto]
        return [word.format(port=free_port()) for word in own] + script


def free_port() -> int:
    """A port for ranks to meet at, instead of the one that clients take when none is given."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def variables(**more: str) -> dict[str, str]:
    """The environment of a user who has these programs on PATH."""
    outside = ("HOROACC_", "HOROVOD_", "OMPI_", "PMI", "PYTHONPATH", "PYTEST_")
    environ = {name: text for name, text in os.environ.items() if not name.startswith(outside)}
    path = f"{BIN}{os.pathsep}{environ.get('PATH', os.defpath)}"
    return environ | {
        "PATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "",
        "TORCH_EXTENSIONS_DIR": str(BIN.parent / "torch_extensions"),
    } | more  # fmt: skip


def run(
    command: list[str], *, cwd: Path = SCRIPTS, seconds: float = SECONDS, **more: str
) -> subprocess.CompletedProcess[str]:
    """Runs a job to its end; ends all of it at a deadline."""
    process = subprocess.Popen(
        command, env=variables(**more), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, cwd=cwd, start_new_session=True,
    )  # fmt: skip
    try:
        out, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, _ = process.communicate()
        out += f"\nnot ended after {seconds} s"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(command, process.returncode, out, "")


def trained(client: Client, launcher: str, way: str) -> Told:
    """What each rank tells when the job has ended well: tensors by file name."""
    command = client.command(launcher, way)
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(3):
            done = run(command, TOLD=folder, **client.environ)
            if not client.late or client.late not in done.stdout:
                break
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-6000:]}"
        files = Path(folder).glob("*.pt")
        told = {path.stem: torch.load(path, weights_only=True) for path in files}
    expected = {f"{name}.{rank}" for name in client.files for rank in range(RANKS)}
    assert set(told) == expected, done.stdout[-6000:]
    assert {used for used, _ in told.values()} == {way != "gloo"}, "the wrong backend was used"
    assert all(tensors for _, tensors in told.values())
    return {name: tensors for name, (_, tensors) in told.items()}


@functools.cache
def with_gloo(client: Client) -> Told:
    """What the ranks tell where HoroACC has no part in it."""
    return trained(client, client.oracle, "gloo")
