"""Slurm as horoaccrun and ranks read it, without one; tests/engines/slurm has a real one."""

from __future__ import annotations

import os
import shutil
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from launcher_jobs import Job

from horoacc.launcher.environment import Placement, PlacementError, Rendezvous, slurm
from horoacc.launcher.environment.seal import SecretSeal
from horoacc.launcher.hosts import Host
from horoacc.launcher.nodelist import expand
from horoacc.launcher.slurm import allocation, failure, for_step, srun_flags

JOB = {
    "SLURM_JOB_ID": "12",
    "SLURM_JOB_NODELIST": "n[08-10],login",
    "SLURM_JOB_CPUS_PER_NODE": "8(x3),4",
    "SLURM_TASKS_PER_NODE": "2(x2),1(x2)",
}
STEP = {"SLURM_JOB_ID": "12", "SLURM_STEP_ID": "3", "SLURM_STEP_NODELIST": "n1"}
NAMES = ["n08", "n09", "n10", "login"]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("n[1-3,7],x", ["n1", "n2", "n3", "n7", "x"]),
        ("a-[098-101]b", ["a-098b", "a-099b", "a-100b", "a-101b"]),
        ("r[1-2]n[01-02].x", ["r1n01.x", "r1n02.x", "r2n01.x", "r2n02.x"]),
        *((wrong, None) for wrong in ("", "n[", "n[2-1]", "n[]", "a b", "n[1-99999999]", "a,,b")),
    ],
)
def test_lists_of_nodes(text: str, names: list[str] | None) -> None:
    if names is None:
        with pytest.raises(ValueError, match=r"no list of nodes|too many"):
            expand(text)
    else:
        assert expand(text) == names


@pytest.mark.parametrize(
    ("more", "slots"),
    [
        ({"SLURM_NTASKS": "6"}, [2, 2, 1, 1]),
        ({}, [8, 8, 8, 4]),  # no number of tasks was asked for
        ({"SLURM_CPUS_PER_TASK": "3"}, [2, 2, 2, 1]),
        # A shell that srun has started.
        (
            {"SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "1", "SLURM_TASKS_PER_NODE": "1"},
            [8, 8, 8, 4],
        ),
        ({"SLURM_STEP_NUM_TASKS": "2"}, None),  # each of two tasks would start the job
        ({"SLURM_JOB_ID": ""}, None),
    ],
)
def test_an_allocation_has_hosts_and_slots(more: dict[str, str], slots: list[int] | None) -> None:
    found = allocation(JOB | more)
    hosts = [Host(*pair) for pair in zip(NAMES, slots, strict=True)] if slots else None
    assert (found.hosts if found else None) == hosts


def test_hosts_are_filled_one_after_the_other() -> None:
    flags = srun_flags(3, [Host("a", 2), Host("b", 2), Host("c", 2)], {"SLURM_CPUS_PER_TASK": "4"})
    told = ["--ntasks=3", "--cpus-per-task=4", "--nodes=2", "--nodelist=a,a,b"]
    assert flags[-4:] == told


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b"srun: error: n-1.x: task 12: Exited with exit code 7", (12, "n-1.x", 7)),
        (b"srun: error: n1: tasks 2-3,5: Killed", (2, "n1", -9)),
        (b"srun: error: n1: task 0: Segmentation fault (core dumped)", (0, "n1", -11)),
        (b"srun: error: n1: task 0: Out Of Memory", (0, "n1", -9)),
        (b"srun: error: Node failure on n1", None),
        (b"srun: Force Terminated StepId=2.0", None),
    ],
)
def test_failures_that_srun_tells(line: bytes, told: object) -> None:
    assert failure(line) == told


@pytest.mark.parametrize(
    ("arguments", "path", "code", "words"),
    [
        (("-np", "7"), True, 2, "-np asks for 7 ranks, but n08:2, n09:2, n10:1, login:1 has 6"),
        (("-H", "n08:2,x:1"), True, 1, "x is not in the allocation of Slurm's job 12, which has n"),
        ((), False, 1, "Slurm's (job 12), but srun, which would start the ranks on its hosts, is"),
        (("-np", "6", "--min-np", "2"), False, 1, "is not on PATH"),
        ((), "n08[", 2, "horoaccrun: the variables of Slurm's job 12 cannot be read"),
    ],
)
def test_bad_input_is_told_at_once(
    arguments: tuple[str, ...], path: object, code: int, words: str, tmp_path: Path
) -> None:
    environ = JOB | {"SLURM_NTASKS": "6", "PATH": os.environ["PATH"]}
    if path is False:
        shutil.copy(shutil.which("true") or "", tmp_path)
        environ["PATH"] = str(tmp_path)
    elif isinstance(path, str):
        environ["SLURM_JOB_NODELIST"] = path
    began = time.monotonic()
    with Job() as job:
        result = job.run(*arguments, "true", code=code, **environ)
    assert words in result.err.splitlines()[-1] and time.monotonic() - began < 20, result


def meet(
    rank: int, size: int, environ: dict[str, str], seconds: float = 20.0, host: str = ""
) -> Rendezvous:
    place = Placement(rank, size, rank, size, 0, 1, "slurm", "tcp")
    return slurm.rendezvous(place, environ, seconds, host)


def ports(environ: dict[str, str]) -> list[int]:
    """Where the ranks of a step meet, as an error tells."""
    with pytest.raises(PlacementError, match=r"did not meet the others on 127\.0\.0\.1") as error:
        meet(1, 2, environ, 0.01)
    return [int(word) for word in str(error.value).partition("ports ")[2].split(")")[0].split(",")]


def test_ranks_meet_beside_strangers() -> None:
    step = STEP | {"HOROACC_SECRET": "ab" * 32, "SLURM_CLUSTER_NAME": str(time.time())}
    first, second, *_ = ports(step)
    other = SecretSeal("cd" * 32).close({"step": "12.3", "rank": 2, "nonce": ""})
    silent: list[socket.socket] = []
    heard = []

    def disturb(lines: list[bytes]) -> None:
        for line in lines:
            link = socket.create_connection(("127.0.0.1", second), timeout=20)
            link.sendall(line)
            silent.append(link)

    with socket.create_server(("127.0.0.1", first)) as taken, ThreadPoolExecutor(8) as pool:

        def serve() -> None:  # a program of somebody else's at the first port, which says nonsense
            for _ in range(2):
                link, _ = taken.accept()
                link.sendall(b"HTTP/1.1 400\n")
                heard.append(link)

        threading.Thread(target=serve, daemon=True).start()
        zero = pool.submit(meet, 0, 4, step)
        one = pool.submit(meet, 1, 4, step).result(20)
        disturb([b"", b"x", b"\n", other + b"\n", bytes(5000), *[b"y"] * 70])
        others = [pool.submit(meet, rank, 4, step) for rank in (2, 3)]
        met = [one, *(each.result(20) for each in others), zero.result(20)]
    assert {(each.address, each.secret) for each in met} == {(one.address, step["HOROACC_SECRET"])}
    assert [each.listen_fd is None for each in met] == [True, True, True, False]
    os.close(met[3].listen_fd or 0)
    for link in (*silent, *heard):
        link.close()


def test_a_rank_whose_answer_was_lost_asks_again() -> None:
    step = STEP | {"HOROACC_SECRET": "ab" * 32, "SLURM_CLUSTER_NAME": str(time.time())}
    seal = SecretSeal(step["HOROACC_SECRET"])
    first = ports(step)[0]
    question = seal.close({"step": "12.3", "rank": 1, "nonce": ""}) + b"\n"
    with ThreadPoolExecutor(1) as pool:
        zero = pool.submit(meet, 0, 2, step)
        while True:  # it listens soon
            try:
                link = socket.create_connection(("127.0.0.1", first), timeout=20)
                break
            except ConnectionRefusedError:
                time.sleep(0.001)
        with link, link.makefile("rb") as lines:
            link.sendall(question)
            assert seal.open(lines.readline().strip())["to"]["rank"] == 1
        assert meet(1, 2, step).address == zero.result(20).address
    os.close(zero.result().listen_fd or 0)


def test_ranks_meet_on_a_host_without_ipv4() -> None:
    step = STEP | {"HOROACC_SECRET": "ab" * 32, "SLURM_CLUSTER_NAME": str(time.time())}
    step["SLURM_STEP_NODELIST"] = "n[1-2]"
    with ThreadPoolExecutor(2) as pool:
        zero, one = pool.map(lambda rank: meet(rank, 2, step, host="::1"), (0, 1))
    assert zero.address == one.address and zero.address.startswith("[::1]:")
    os.close(zero.listen_fd or 0)


@pytest.mark.parametrize(
    ("more", "rank", "words"),
    [
        ({"SLURM_STEP_NODELIST": "n["}, 0, "SLURM_STEP_NODELIST: 'n\\[' is no list"),
        ({"SLURM_STEP_NODELIST": "no.such,n2"}, 0, "node no.such, where rank 0 is, has no address"),
        ({}, 0, r"rank 0 .* in 0.2 s: rank\(s\) 1, 2 did not come"),
        ({}, 2, r"rank 2 of Slurm's step 12.3 .* in 0.2 s: nobody listens there"),
    ],
)
def test_who_does_not_meet_says_why(more: dict[str, Any], rank: int, words: str) -> None:
    name = {"SLURM_CLUSTER_NAME": str(time.time()), "HOROACC_SECRET": "ab"}
    with pytest.raises(PlacementError, match=words):
        meet(rank, 3, STEP | name | more, 0.2)


def test_a_step_has_nothing_of_a_step_around_it() -> None:
    around = {"PMI_RANK": "0", "PMI_SIZE": "1", "PMIX_RANK": "0", "OMPI_COMM_WORLD_RANK": "0"}
    kept = {"SLURM_JOB_ID": "7", "LR": "1", "OMPI_MCA_x": "y"}
    assert for_step(around | kept | {"SLURM_NTASKS": "1"}) == kept | {"SLURM_CPU_BIND": "none"}
