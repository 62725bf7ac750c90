"""torch.distributed.shrink_group: the ranks that are left make a group and go on."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from restarts import environ, weights

SCRIPTS = Path(__file__).resolve().parents[1] / "torch_scripts"
STEPS = 7


def start(
    script: str, size: int, *arguments: str, store: bool, **more: str
) -> tuple[list[subprocess.Popen[str]], object]:
    """Starts the ranks as a launcher does that lets the others live when one dies.

    With `store` this process holds torch's store, as torchrun's agent does; else rank 0.
    """
    kept: object = None
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    if store:
        made = dist.TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=60), False)
        kept, port = made, made.port
        more |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "job"}
    more |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(size)}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(SCRIPTS / script), *arguments], text=True,
            env=environ(RANK=str(rank), LOCAL_RANK=str(rank), **more),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        for rank in range(size)
    ]  # fmt: skip
    return ranks, kept


def ends(ranks: list[subprocess.Popen[str]], seconds: float = 150) -> list[tuple[int, str]]:
    """How each rank ended, and what it printed."""
    try:
        told = [rank.communicate("\n", timeout=seconds)[0] for rank in ranks]
        return [(rank.returncode, text) for rank, text in zip(ranks, told, strict=True)]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


@pytest.mark.parametrize(
    ("size", "deaths", "store", "left"),
    [
        (3, "1@3", False, [0, 2]),
        (3, "0@3", True, [1, 2]),
        (3, "2@2 0@5", True, [1]),
        (4, "1,2@3", False, [0, 3]),
        (4, "3@0 0@4 1@6", True, [1]),
        (4, "0@3-leaves", True, [1, 2, 3]),
    ],
)
def test_those_who_are_left_go_on(
    tmp_path: Path, size: int, deaths: str, store: bool, left: list[int]
) -> None:
    ranks, kept = start("shrink.py", size, str(tmp_path), str(STEPS), deaths, store=store)
    told = ends(ranks)
    del kept
    end = 0 if "leaves" in deaths else -signal.SIGKILL
    assert [code for code, _ in told] == [0 if n in left else end for n in range(size)], told
    for rank in left:
        assert f"group of {len(left)} as {left.index(rank)}" in told[rank][1], told[rank][1]
        saved = torch.load(tmp_path / f"end.{rank}")
        found = saved["model"]["weight"][0].numpy()
        np.testing.assert_allclose(found, weights(STEPS), rtol=1e-5)


MEET = "the ranks that are left could not meet"


@pytest.mark.parametrize(
    ("case", "store", "more", "said"),
    [
        ("the store died", False, {}, (MEET, MEET)),
        # A rank that is alone needs nobody.
        ("they disagree", True, {"HOROACC_START_TIMEOUT": "5"}, ("rank(s) 1 did not", "of 1")),
        ("a group of a job that failed", True, {}, ("shrink the default", "shrink the default")),
    ],
)  # fmt: skip
def test_what_cannot_work_is_said(
    case: str, store: bool, more: dict[str, str], said: tuple[str, str]
) -> None:
    ranks, kept = start("shrink_refused.py", 3, case, store=store, **more)
    told = ends(ranks)
    del kept
    left = [printed for code, printed in told if code != -signal.SIGKILL]
    for printed, text in zip(left, said, strict=True):
        (line,) = [line for line in printed.splitlines() if text in line]
        assert text.startswith("of") or line.startswith("ConfigError: "), told


def test_ranks_that_mpi_joins_cannot_shrink() -> None:
    script = [sys.executable, str(SCRIPTS / "shrink_refused.py"), "control by MPI"]
    done = subprocess.run(
        [sys.executable, "-m", "horoacc.launcher.main", "--mpi", "--control", "mpi", "-np", "3",
         *script],
        env=environ(HOROACC_SIMULATED_HOSTS="each"), capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout.count("setting 'control' is 'mpi'") == 2, done


def test_a_group_of_a_job_that_works(tmp_path: Path) -> None:
    ranks, kept = start("shrink_refused.py", 3, "a job that works", store=True)
    told = ends(ranks)
    del kept
    assert [code for code, _ in told] == [0] * 3, told
    lines = [text.splitlines() for _, text in told]
    assert lines[0][-2:] == ["[4.0, 4.0] 2 0", "3.0"], told
    assert lines[1][-1:] == ["3.0"] and lines[2][-2:] == ["[4.0, 4.0] 2 1", "3.0"], told


@pytest.mark.parametrize("case", ["a rank that lives", "a rank that is stopped"])
def test_who_is_excluded_may_live(case: str) -> None:
    """The others need nothing of it, and it gets an error when it goes on."""
    ranks, kept = start("shrink_refused.py", 3, case, store=True)
    told = ends(ranks[:2])
    assert [(code, text.splitlines()[-1]) for code, text in told] == [(0, "2.0")] * 2, told
    ranks[2].send_signal(signal.SIGCONT)
    ((code, text),) = ends(ranks[2:])
    del kept
    assert code == 0 and "has shut down" in text, text
