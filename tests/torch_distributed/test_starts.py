"""Scripts of PyTorch's documentation under every launcher, as they are and with `horoacc.auto`."""

from __future__ import annotations

import contextlib
import io
import os
import runpy
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist
from pool import BodyFailed, Pools
from torch.distributed import distributed_c10d as c10d

import horoacc.torch as hvd
from horoacc.torch import rendezvous

HERE = Path(__file__)
SCRIPTS = HERE.resolve().parents[1] / "torch_scripts"
SECONDS = 300
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
HOROACCRUN = ["-m", "horoacc.launcher.main", "-np", "2"]
MPIRUN = str(Path(sys.executable).parent / "mpirun")


def variables() -> dict[str, str]:
    """The environment of a job that nobody has started yet."""
    outside = ("HOROACC_", "HOROVOD_", "OMPI_", "PMI")
    environ = {name: text for name, text in os.environ.items() if not name.startswith(outside)}
    if cache := os.environ.get("HOROACC_CACHE_DIR"):
        environ["HOROACC_CACHE_DIR"] = cache
    return environ | {"OMP_NUM_THREADS": "1"}


def lines(*arguments: str, program: str = sys.executable) -> list[str]:
    """What a job printed."""
    done = subprocess.run(
        [program, *arguments], env=variables(), capture_output=True,
        text=True, timeout=SECONDS, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return [line.removeprefix("[0] ") for line in done.stdout.strip().splitlines()]


def plain_script(name: str, port: int) -> str:
    """Runs a script as it is in the ranks of a pool; gives what it writes."""
    rank, size = hvd.rank(), hvd.size()
    places = {
        "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size,
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
    }  # fmt: skip
    os.environ.update({variable: str(value) for variable, value in places.items()})
    path = str(SCRIPTS / f"{name}.py")
    with contextlib.redirect_stdout(io.StringIO()) as said:
        if name == "pipeline":
            # The script would start processes.
            script = runpy.run_path(path, run_name=name)
            script["init_process"](rank, size, port, script["run"])
        else:
            runpy.run_path(path, run_name="__main__")
    for variable in places:
        del os.environ[variable]
    return said.getvalue().strip()


def plain(pools: Pools, name: str) -> str:
    """What a script prints with Gloo, which is not what is tested and may hang twice."""
    said = ""
    for _ in range(3):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        pool = pools.get(2, "horoacc.torch", {"HOROACC_ARENA": "off"})
        try:
            return str(pool.run(HERE, "plain_script", {"name": name, "port": port}, 30)[0])
        except BodyFailed as failure:
            said = str(failure)
    pytest.fail(f"{name}.py does not end with Gloo either: {said}")


def both(line: str, with_gloo: str) -> None:
    """The script chose Gloo, and is told so; the numbers are the same."""
    assert with_gloo.split()[0] == "gloo"
    assert line == with_gloo


def test_a_ddp_script_under_torchrun(pools: Pools) -> None:
    ours = lines(*TORCHRUN, "-m", "horoacc.auto", str(SCRIPTS / "ddp.py"))
    both(ours[-1], plain(pools, "ddp"))


def test_an_fsdp2_script_under_horoaccrun(pools: Pools) -> None:
    script = str(SCRIPTS / "fsdp2.py")
    ours = lines(*HOROACCRUN, "--tcp", sys.executable, "-m", "horoacc.auto", script)
    both(ours[-1], plain(pools, "fsdp2"))


def test_a_pipeline_that_starts_its_own_processes(pools: Pools) -> None:
    ours = lines("-m", "horoacc.auto", str(SCRIPTS / "pipeline.py"), "2")
    both(ours[-1], plain(pools, "pipeline"))


STORE = """
import socket
import torch.distributed as dist
import horoacc.torch
dist.init_process_group("horoacc")
store = dist.distributed_c10d._get_default_store()
while hasattr(store, "underlying_store"):
    store = store.underlying_store
if dist.get_rank() == 0:
    for address in ("127.0.0.1", "127.0.0.2"):
        with socket.socket() as stranger:
            print(address, stranger.connect_ex((address, store.port)) == 0, flush=True)
dist.barrier()
dist.destroy_process_group()
"""


def test_the_store_of_one_host_listens_at_its_address_alone() -> None:
    shown = lines(*HOROACCRUN, "--tcp", sys.executable, "-c", STORE)
    assert shown == ["127.0.0.1 True", "127.0.0.2 False"]


RESTARTS = """
import os, subprocess, sys
import torch.distributed.distributed_c10d as c10d
main = sys.modules["__main__"]
auto = hasattr(c10d._new_process_group_helper, "__wrapped__")
print(__name__, main.__file__ == __file__, sys.argv[1:], auto, flush=True)
if "child" not in os.environ:
    again = [sys.executable, "-m", main.__spec__.name, *sys.argv[1:]]
    subprocess.run(again, env=os.environ | {"child": "1"}, check=True)
"""


@pytest.mark.parametrize(
    ("machines", "asked"),
    [
        ([("a", "boot 1")] * 2, []),
        ([("a", "boot 1"), ("b", "boot 2")], ["b"]),
        ([("a", "boot 1"), ("a", "boot 2")], [rendezvous.ELSEWHERE[0]]),  # clones
    ],
)
def test_the_store_listens_where_the_others_are(
    machines: list[tuple[str, str]], asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []

    def towards(other: str) -> tuple[socket.AddressFamily, str]:
        heard.append(other)
        return socket.AF_INET, "127.0.0.2"

    monkeypatch.setattr(rendezvous, "address_towards", towards)
    with rendezvous._listener(machines) as listener:
        assert listener.getsockname()[0] == ("127.0.0.2" if asked else "127.0.0.1")
    assert heard == asked


@pytest.mark.parametrize("arguments", [[], ["--backend", "gloo"]], ids=str)
@pytest.mark.parametrize("as_module", [False, True])
def test_a_program_that_starts_itself_again(
    as_module: bool, arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    program = package / "train.py"
    program.write_text(RESTARTS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    words = ["-m", "package.train"] if as_module else [str(program)]
    shown = lines("-m", "horoacc.auto", *words, *arguments)
    assert shown == [f"__main__ True {arguments} True"] * 2
    # Launchers that start a module put this in front of the program's name.
    first = "--local_rank=0"
    shown = lines("-m", "horoacc.auto", first, *words, *arguments)
    assert shown == [f"__main__ True {[first, *arguments]} True"] * 2


def test_a_program_that_starts_another_one(tmp_path: Path) -> None:
    """The other one, and its own arguments, are what the first one was given."""
    (tmp_path / "runs_all.py").write_text(
        "import subprocess, sys\n"
        "for program in sys.argv[1:]:\n"
        "    subprocess.run([sys.executable, '-m', 'horoacc.auto', *sys.argv[1:]], check=True)\n"
    )
    (tmp_path / "train.py").write_text("import sys; print(sys.argv)")
    train = str(tmp_path / "train.py")
    assert lines("-m", "horoacc.auto", str(tmp_path / "runs_all.py"), train) == [str([train])]


OPEN_MPIS = "rank=int(os.environ['OMPI_COMM_WORLD_RANK']), world_size=2"


@pytest.mark.parametrize("place", ["", OPEN_MPIS], ids=["by variables", "by arguments"])
def test_by_name_under_mpirun(place: str) -> None:
    if not Path(MPIRUN).exists():
        pytest.skip("Open MPI's mpirun is not installed")
    text = (
        "import os, torch, torch.distributed as dist, horoacc.torch\n"
        f"dist.init_process_group('horoacc', {place})\n"
        "x = torch.full((3,), dist.get_rank() + 1.0)\n"
        "dist.all_reduce(x)\n"
        "dist.destroy_process_group()\n"
        "print(x.tolist(), flush=True)\n"
    )
    printed = lines(
        "-np", "2", "--oversubscribe", "--allow-run-as-root", "--bind-to", "none",
        sys.executable, "-c", text, program=MPIRUN,
    )  # fmt: skip
    assert printed == ["[3.0, 3.0, 3.0]"] * 2


def test_a_rank_that_dies_ends_a_recv_with_its_name() -> None:
    text = (
        "import os, socket, torch, torch.distributed as dist, horoacc.torch\n"
        "with socket.socket() as probe:\n"
        "    probe.bind(('127.0.0.1', 0))\n"
        "    port = str(probe.getsockname()[1])\n"
        "os.environ.update(WORLD_SIZE='2', MASTER_ADDR='127.0.0.1', MASTER_PORT=port)\n"
        "child = os.fork()\n"
        "os.environ['RANK'] = '0' if child else '1'\n"
        "dist.init_process_group('horoacc')\n"
        "dist.barrier()\n"
        "if not child: os.kill(os.getpid(), 9)\n"
        "try: dist.recv(torch.ones(1), 1)\n"
        "except dist.DistBackendError as error: print(error)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    said, status = lines("-c", text)
    assert "rank 1 died" in said
    assert status == "-9"


def test_what_takes_the_place_of_what() -> None:
    from horoacc.torch.default_backend import replaced

    assert replaced("gloo") == replaced("mpi") == replaced("undefined") == "horoacc"
    assert replaced("cpu:gloo,cuda:nccl") == "cpu:horoacc,cuda:nccl"
    assert replaced("nccl") == "nccl" and replaced("horoacc") == "horoacc"


GROUP = """
import os, torch, torch.distributed as dist, {first}
place = {place}
dist.init_process_group(os.environ.get("ASKED"), **place)
group = dist.new_group([0, 1])
total = torch.ones(3) * (dist.get_rank() + 1)
dist.all_reduce(total, group=group)
assert total[0] == 3, total
real = dist.group.WORLD._get_backend(torch.device("cpu")).name()
told = (dist.get_backend(), dist.get_backend(group), dist.get_backend_config())
if dist.get_rank() == 0:
    print(real, *told)
dist.destroy_process_group()
"""
BY_ARGUMENTS = '{"rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}'
LAUNCHERS = {
    "tcp": [*HOROACCRUN, "--tcp"], "mpi": [*HOROACCRUN, "--mpi", "--mpirun", MPIRUN],
    "torchrun": TORCHRUN,
}  # fmt: skip


# Libraries compare what a group says with the names that they know, and pass rank and size.
@pytest.mark.parametrize(
    ("launcher", "asked", "place"),
    [
        pytest.param(
            launcher, asked, BY_ARGUMENTS if (k + n) % 2 else "{}", id=f"{launcher}-{asked}"
        )
        for k, launcher in enumerate(LAUNCHERS)
        for n, asked in enumerate(["gloo", "", "cpu:gloo"])
    ],
)
def test_a_group_says_what_was_asked_for(
    launcher: str, asked: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if asked:
        monkeypatch.setenv("ASKED", asked)
    told = []
    for first in ("sys", "horoacc.auto"):
        script = tmp_path / f"{first}.py"
        script.write_text(GROUP.format(first=first, place=place))
        told.append(lines(*LAUNCHERS[launcher], *python_of(launcher), str(script))[-1].split())
    (plain, *as_asked), (real, *under_auto) = told
    assert (plain, real) == ("gloo", "horoacc")
    assert under_auto == as_asked


def python_of(launcher: str) -> list[str]:
    return [] if launcher == "torchrun" else [sys.executable]


def test_auto_can_be_removed() -> None:
    before = (c10d._new_process_group_helper, dict(dist.Backend.default_device_backend_map))
    import horoacc.auto

    try:
        assert c10d._new_process_group_helper is not before[0]
    finally:
        horoacc.auto.remove()
    after = (c10d._new_process_group_helper, dict(dist.Backend.default_device_backend_map))
    assert after == before
