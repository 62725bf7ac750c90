"""The launcher and place of this process, from the variables that each launcher sets."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

import pytest
from launcher_jobs import MODES, Job

from horoacc.launcher import environment, mpirun
from horoacc.launcher.environment import Placement, PlacementError

TORCH = {"RANK": "5", "WORLD_SIZE": "8", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
TORCHRUN = TORCH | {
    "TORCHELASTIC_RUN_ID": "none",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
}
OMPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "6",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
PMI = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
SLURM = {
    "SLURM_PROCID": "4",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "2",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
}
POD = {"JOB_COMPLETION_INDEX": "2", "HOROACC_PODS": "3", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
TRAINJOB = {
    "PET_NNODES": "3",
    "PET_NODE_RANK": "1",
    "PET_NPROC_PER_NODE": "1",
    "PET_MASTER_ADDR": "127.0.0.1",
    "PET_MASTER_PORT": "29400",
}
OWN = {
    "HOROACC_RANK": "1",
    "HOROACC_SIZE": "2",
    "HOROACC_LOCAL_RANK": "1",
    "HOROACC_LOCAL_SIZE": "2",
    "HOROACC_CROSS_RANK": "0",
    "HOROACC_CROSS_SIZE": "1",
}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (OWN, Placement(1, 2, 1, 2, 0, 1, "horoaccrun", "tcp")),
        (TORCHRUN, Placement(5, 8, 1, 4, 1, 2, "torchrun", "tcp")),
        (TORCH, Placement(5, 8, 5, 8, 0, 1, "torchrun", "tcp")),
        (OMPI, Placement(3, 6, 1, 2, 1, 3, "openmpi", "mpi")),
        (PMI, Placement(1, 2, 1, 2, 0, 1, "mpich", "mpi")),
        (SLURM, Placement(4, 5, 0, 1, 2, 3, "slurm", "tcp")),
        (SLURM | {"PMIX_RANK": "4"}, Placement(4, 5, 0, 1, 2, 3, "slurm", "mpi")),
        (SLURM | {"PMI_RANK": "4", "PMI_SIZE": "5"}, Placement(4, 5, 0, 1, 2, 3, "mpich", "mpi")),
        (POD, Placement(2, 3, 0, 1, 2, 3, "kubernetes", "tcp")),
        (TRAINJOB, Placement(1, 3, 0, 1, 1, 3, "kubeflow", "tcp")),
        ({"JOB_COMPLETION_INDEX": "2"}, Placement(0, 1, 0, 1, 0, 1, "single", "none")),
        ({}, Placement(0, 1, 0, 1, 0, 1, "single", "none")),
    ],
)
def test_each_launcher_is_recognised(environ: dict[str, str], expected: Placement) -> None:
    assert environment.detect(environ) == expected


def test_the_innermost_launcher_is_asked_first() -> None:
    everything = OWN | TORCHRUN | OMPI | PMI | POD | TRAINJOB | SLURM
    order = []
    for names in (OWN, TORCHRUN, OMPI, PMI, POD, TRAINJOB, SLURM):
        order.append(environment.detect(everything).launcher)
        everything = {name: text for name, text in everything.items() if name not in names}
    names = ["horoaccrun", "torchrun", "openmpi", "mpich", "kubernetes", "kubeflow", "slurm"]
    assert order == names
    # Variables for torch.distributed, exported by hand under mpirun or srun.
    assert environment.detect(TORCH | OMPI).launcher == "openmpi"
    assert environment.detect(TORCH | SLURM).launcher == "torchrun"


def test_what_ranks_on_other_hosts_get() -> None:
    environ = SLURM | PMI | OMPI | dict.fromkeys(
        ("LR", "PATH", "HF_HOME", "NCCL_DEBUG", "HOROACC_SECRET", "LC_ALL", "USER_ID",
         "HOME", "USER", "PWD", "SSH_CLIENT", "CUDA_VISIBLE_DEVICES", "BASH_FUNC_x%%", "_",
         "RANK", "HOSTNAME", "PET_NNODES"), "x",
    )  # fmt: skip
    passed = ["HF_HOME", "HOROACC_SECRET", "LC_ALL", "LR", "NCCL_DEBUG", "PATH", "USER_ID"]
    assert mpirun.exported(environ) == sorted(passed)


def block(name: str) -> str:
    """A marked part of the page about launchers."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "launchers.md").read_text()
    return page.partition(f"<!-- {name}:begin -->")[2].partition(f"<!-- {name}:end -->")[0]


def test_the_page_has_every_launcher_and_what_it_is_known_by() -> None:
    rows = [row.split("|")[1:-1] for row in block("launchers").strip().splitlines()[2:]]
    assert [row[0].strip(" `") for row in rows] == [each.__name__ for each in environment.LAUNCHERS]
    for (_, _, known, _), launcher in zip(rows, environment.LAUNCHERS, strict=True):
        names = known.replace("`", "").split()
        variables = {name: "1" if "SIZE" in name or name in _COUNTS else "0" for name in names}
        assert environment.detect(variables) == launcher(variables) is not None
        for name in names:  # none is there for nothing
            left = {other: text for other, text in variables.items() if other != name}
            try:
                assert launcher(left) is None
            except PlacementError as error:
                assert name in str(error)


_COUNTS = {"HOROACC_PODS", "PET_NNODES", "SLURM_STEP_NUM_TASKS"}


def test_an_unknown_launcher_says_who_it_is(tmp_path: Path) -> None:
    lines = block("unknown").replace("```sh", "").replace("```", "")
    script = tmp_path / "rank.sh"
    script.write_text(lines)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
    script.write_text(lines.replace("29400", port))
    ranks = []
    with Job() as job:
        job.starter = ("sh", str(script))
        for rank in ("1", "0"):
            place = {"RANK": rank, "SIZE": "2", "LOCAL_RANK": rank, "LOCAL_SIZE": "2"}
            own = place | {"FIRST_HOST": "127.0.0.1", "JOB_SECRET": "ab" * 32}
            ranks.append(job.start(sys.executable, "-c", SUM, **own))
        told = [each.communicate(timeout=300)[0].decode().split() for each in ranks]
    assert told == [["1", "2", "3.0"], ["0", "2", "3.0"]]


def test_a_slurm_batch_script_is_alone() -> None:
    batch = {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "1"}
    assert environment.detect(batch).launcher == "single"


def test_jobs_of_one_rank_need_no_meeting() -> None:
    alone = {name: "0" if "RANK" in name else "1" for name in OWN}
    assert environment.detect(alone).bootstrap == "none"
    assert environment.rendezvous(environment.detect({}), {}).address == ""


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        (OWN | {"HOROACC_RANK": "2"}, "rank 2 of 2"),
        (OWN | {"HOROACC_SIZE": "two"}, "HOROACC_SIZE is 'two'"),
        ({"HOROACC_RANK": "0"}, "HOROACC_SIZE is missing"),
        (OMPI | {"OMPI_COMM_WORLD_RANK": "-1"}, "openmpi says"),
        (POD | {"JOB_COMPLETION_INDEX": "3"}, "kubernetes says that this process has rank 3 of 3"),
        (TRAINJOB | {"PET_NPROC_PER_NODE": "4"}, "PET_NPROC_PER_NODE is '4': have the TrainJob"),
    ],
)
def test_contradictions_are_errors(environ: dict[str, str], words: str) -> None:
    with pytest.raises(PlacementError, match=words):
        environment.detect(environ)


def test_own_rendezvous_checks_the_inherited_socket() -> None:
    rank_0 = OWN | {"HOROACC_RANK": "0", "HOROACC_LOCAL_RANK": "0", "HOROACC_SECRET": "ab"}
    place = environment.detect(rank_0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        fd = listener.fileno()
        told = rank_0 | {"HOROACC_RENDEZVOUS": address, "HOROACC_RENDEZVOUS_FD": str(fd)}
        os.set_inheritable(fd, True)
        found = environment.rendezvous(place, told)
        assert (found.address, found.listen_fd, found.secret) == (address, fd, "ab")
        assert not os.get_inheritable(fd)
        # Another port's socket, another kind of file, a closed one, none: rank 0 binds itself.
        with open(os.devnull) as file:
            open_files = os.listdir("/proc/self/fd")
            for wrong in (
                {"HOROACC_RENDEZVOUS": "127.0.0.1:1"}, {"HOROACC_RENDEZVOUS_FD": str(file.fileno())}
            ):  # fmt: skip
                assert environment.rendezvous(place, told | wrong).listen_fd is None
            assert os.listdir("/proc/self/fd") == open_files
        other = environment.detect(OWN)
        assert environment.rendezvous(other, told).listen_fd is None
    assert environment.rendezvous(place, told).listen_fd is None
    with pytest.raises(PlacementError, match="HOROACC_SECRET"):
        environment.rendezvous(place, told | {"HOROACC_SECRET": ""})
    with pytest.raises(PlacementError, match="HOROACC_RENDEZVOUS"):
        environment.rendezvous(place, rank_0)


SHOW = """
import dataclasses, json, socket, sys, time
import numpy as np
import horoacc as hvd
from horoacc import basics, job_secret
from horoacc.launcher import environment
place = environment.detect()
shown = dataclasses.asdict(place)
shown["sums"] = []
for number in range(2):
    hvd.init()
    shown["sums"] += hvd.allreduce(np.full(2, hvd.rank() + 1.0), op=hvd.Sum).tolist()
    shown["met"] = basics.bootstrap()
    shown["messages"] = hvd.counters()["control_messages"]
    hvd.barrier()
    hvd.shutdown()
maps = open("/proc/self/maps").read()
shown["plug_ins"] = sorted({line.split("/")[-1] for line in maps.split() if "horoacc_mpi_" in line})
for _ in range(2):  # as an init() does, each time anew
    meeting = environment.rendezvous(place, job_secret.environ(), 30)
    host, _, port = meeting.address.rpartition(":")
    if meeting.address and place.rank == 0:
        fd = meeting.listen_fd
        with socket.create_server((host, int(port))) if fd is None else socket.socket(
            fileno=fd
        ) as listener:
            listener.settimeout(30)
            for _ in range(place.size - 1):
                link = listener.accept()[0]
                assert link.makefile().readline().strip() == meeting.secret
                link.sendall(b"met")
    elif meeting.address:
        for _ in range(300):  # rank 0 may have to bind the address first
            try:
                with socket.create_connection((host, int(port)), timeout=30) as link:
                    link.sendall(meeting.secret.encode() + b"\\n")
                    assert link.recv(3) == b"met"
                break
            except (ConnectionRefusedError, ConnectionResetError):
                # Or the engine's listener, which is just closing, took the connection.
                time.sleep(0.1)
    shown["secret_bytes"] = len(meeting.secret) // 2
print("PLACED " + json.dumps(shown), flush=True)
"""


def placed(text: str) -> list[dict[str, object]]:
    # torchrun does not keep the lines of its ranks apart.
    found = [json.JSONDecoder().raw_decode(part)[0] for part in text.split("PLACED ")[1:]]
    return sorted(found, key=lambda entry: int(entry["rank"]))


def check_places(places: list[dict[str, object]], size: int, launcher: str, how: str) -> None:
    assert [place["rank"] for place in places] == list(range(size))
    for place in places:
        assert (place["size"], place["local_size"], place["local_rank"]) == (
            size, size, place["rank"],
        )  # fmt: skip
        assert (place["launcher"], place["bootstrap"]) == (launcher, how)
        # The engine starts there, twice, and negotiates in shared memory.
        assert place["sums"] == [size * (size + 1) / 2] * 4
        assert (place["met"], place["messages"]) == (how, 0)
        assert place["plug_ins"] == ([f"libhoroacc_mpi_{launcher}.so"] if how == "mpi" else [])


def test_under_horoaccrun(job: Job, any_mode: list[str]) -> None:
    launcher = next(name for name, flags in MODES.items() if flags == any_mode)
    result = job.run(*any_mode, "-np", "3", sys.executable, "-c", SHOW)
    places = placed(result.out)
    name, how = ("horoaccrun", "tcp") if launcher == "tcp" else (launcher, "mpi")
    check_places(places, 3, name, how)
    assert all(place["secret_bytes"] == 32 for place in places)


def test_under_torchrun(job: Job, tmp_path: Path) -> None:
    script = tmp_path / "show.py"
    script.write_text(SHOW)
    job.starter = (sys.executable, "-m", "torch.distributed.run")
    result = job.run("--standalone", "--nproc-per-node=2", str(script))
    places = placed(result.out)
    check_places(places, 2, "torchrun", "tcp")
    assert all(place["secret_bytes"] == 32 for place in places)


def test_nodes_of_a_trainjob_meet_through_its_master(job: Job) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
    nodes = []
    for rank in ("1", "0"):
        more = {"PET_NNODES": "2", "PET_NODE_RANK": rank, "PET_MASTER_PORT": port}
        job.starter = (sys.executable, "-c", SUM)
        nodes.append(job.start(**TRAINJOB | more))
    assert [node.communicate(timeout=300)[0].decode() for node in nodes] == [
        "1 2 3.0\n",
        "0 2 3.0\n",
    ]


SUM = """
import numpy as np, horoacc as hvd
hvd.init()
total = hvd.allreduce(np.full(1, hvd.rank() + 1.0), op=hvd.Sum)
print(hvd.rank(), hvd.size(), float(total[0]))
"""


@pytest.mark.parametrize(
    ("variable", "line"),
    [
        ("OMPI_MCA_orte_default_hostfile", "localhost slots=2"),
        ("HYDRA_HOST_FILE", "localhost:2"),
    ],
)
def test_horoaccrun_takes_the_hosts_of_the_mpi_operator(
    job: Job, tmp_path: Path, variable: str, line: str
) -> None:
    (tmp_path / "hostfile").write_text(line + "\n")
    environ = {variable: str(tmp_path / "hostfile")}
    result = job.run("--tcp", sys.executable, "-c", SUM, **environ)
    assert sorted(result.out.splitlines()) == ["[0] 0 2 3.0", "[1] 1 2 3.0"]
    result = job.run("--tcp", "-np", "3", "true", code=2, **environ)
    assert "-np asks for 3 ranks, but localhost:2 has 2 slots" in result.err


def test_under_mpirun_alone(job: Job) -> None:
    mpirun = MODES["openmpi"][1]
    job.starter = (mpirun, "--allow-run-as-root", "--map-by", "slot:OVERSUBSCRIBE")
    result = job.run("-np", "2", sys.executable, "-c", SHOW)
    check_places(placed(result.out), 2, "openmpi", "mpi")
