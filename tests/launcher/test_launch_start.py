"""The ranks' place, variables and standard input; and jobs that cannot be started."""

from __future__ import annotations

import os
import re
import shlex
import socket
import sys
from pathlib import Path

import pytest
from launcher_jobs import RANK, Job, patched

from horoacc.launcher.arguments import parse_arguments
from horoacc.launcher.main import main, rank_environ
from horoacc.launcher.mpirun import Mpirun, command_line

CORES = len(os.sched_getaffinity(0))
NO_MPIRUN = "import horoacc.launcher.main as m; m.find_mpirun = lambda *_: None"


def test_every_rank_runs_once(job: Job, any_mode: list[str]) -> None:
    result = job.run(*any_mode, "-np", "4", "sh", "-c", f"echo rank {RANK}")
    assert [result.of(rank) for rank in range(4)] == [[f"rank {rank}"] for rank in range(4)]
    assert result.err == ""


def test_placement_over_tcp(job: Job) -> None:
    names = ["RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE"]
    echo = "echo " + " ".join(f"$HOROACC_{n}=$HOROVOD_{n}" for n in names)
    result = job.run("--tcp", "-np", "3", "sh", "-c", echo + " on $HOROVOD_HOSTNAME")
    for rank in range(3):
        values = [rank, 3, rank, 3, 0, 1]
        place = " ".join(f"{value}={value}" for value in values)
        assert result.of(rank) == [f"{place} on {socket.gethostname()}"]


def test_rank_0_inherits_a_listening_socket(job: Job) -> None:
    program = """
import os, socket
fd = os.environ.get("HOROACC_RENDEZVOUS_FD")
address = os.environ["HOROACC_RENDEZVOUS"]
if fd is None:
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), timeout=20) as link:
        print(link.recv(10).decode())
else:
    listener = socket.socket(fileno=int(fd))
    assert "%s:%d" % listener.getsockname() == address
    print("listens")
    listener.settimeout(20)
    listener.accept()[0].sendall(b"hello")
"""
    result = job.run("--tcp", "-np", "2", sys.executable, "-c", program)
    assert (result.of(0), result.of(1)) == (["listens"], ["hello"])


@pytest.mark.parametrize("flags", [["--tcp"], ["--mpi"], ["--min-np", "2"]], ids=" ".join)
def test_what_a_rank_starts_has_no_secret(job: Job, flags: list[str]) -> None:
    program = """
import os, subprocess, sys
import horoacc as hvd
for turn in range(2):
    hvd.init()
    look = "import os; print(any('HOROACC_SECRET' in name for name in os.environ), flush=True)"
    subprocess.run([sys.executable, "-c", look], check=True)
    hvd.barrier()
    if len(sys.argv) == 1: hvd.shutdown()
    else: break
"""
    once = ["once"] if "--min-np" in flags else []
    result = job.run(*flags, "-np", "2", sys.executable, "-c", program, *once)
    assert result.of(0) == result.of(1) == ["False"] * (2 - len(once)), result.err


def test_secret_is_the_same_everywhere_fresh_and_on_no_command_line(
    job: Job, mode: list[str]
) -> None:
    look = """
import os, glob
from horoacc import job_secret
told = set(os.environ) & {"HOROACC_SECRET", "HOROACC_SECRET_FD"}
secret = job_secret.environ()["HOROACC_SECRET"]
seen = told != {"HOROACC_SECRET_FD"} or job_secret.environ()["HOROACC_SECRET"] != secret
for path in glob.glob("/proc/[0-9]*/cmdline") + ["/proc/self/environ"]:
    try:
        seen += secret.encode() in open(path, "rb").read()
    except OSError:
        pass
print(secret, len(bytes.fromhex(secret)), seen)
"""
    secrets = set()
    for _ in range(2):
        result = job.run(*mode, "-np", "2", sys.executable, "-c", look)
        (line,) = set(result.of(0) + result.of(1))
        secret, length, seen = line.split()
        assert (length, seen) == ("32", "0")
        secrets.add(secret)
    assert len(secrets) == 2


BETWEEN = {
    "closes": "import os, sys; os.closerange(3, 1000); os.execvp(sys.argv[1], sys.argv[1:])",
    "starts": """
import os, subprocess, sys
os.closerange(3, 1000)
sys.exit(subprocess.call(sys.argv[1:]))
""",
    "replaces": """
import os, sys
fd = int(os.environ["HOROACC_SECRET_FD"].split(":")[1])
os.dup2(os.open("/dev/null", os.O_RDONLY), fd)
os.execvp(sys.argv[1], sys.argv[1:])
""",
}


def starts_behind(between: str, job: Job, *flags: str) -> None:
    program = "import horoacc as hvd; hvd.init(); print(hvd.size(), flush=True); hvd.shutdown()"
    wrapper = [sys.executable, "-c", BETWEEN[between]]
    result = job.run(*flags, "-np", "2", *wrapper, sys.executable, "-c", program)
    assert result.of(0) == result.of(1) == ["2"], result.err


@pytest.mark.parametrize("between", BETWEEN)
def test_programs_between_need_not_pass_the_secret_on(
    job: Job, mode: list[str], between: str
) -> None:
    starts_behind(between, job, *mode)


def test_programs_between_need_not_pass_an_elastic_jobs_secret_on(job: Job) -> None:
    starts_behind("replaces", job, "--min-np", "2")


def test_a_secret_out_of_reach_is_named(job: Job) -> None:
    program = "import horoacc as hvd; hvd.init()"
    wrapper = f"""
import os, sys
os.environ["HOROACC_SECRET_FD"] = "{os.getpid()}:0"
os.execvp(sys.argv[1], sys.argv[1:])
"""
    command = [sys.executable, "-c", wrapper, sys.executable, "-c", program]
    result = job.run("--tcp", "-np", "2", *command, code=None)
    assert "can read neither its own descriptor nor that one" in result.err


def test_threads_are_bounded_unless_the_user_says_otherwise(job: Job, mode: list[str]) -> None:
    ranks = CORES + 1
    show = ["sh", "-c", "echo $OMP_NUM_THREADS"]
    assert job.run(*mode, "-np", str(ranks), *show).of(0) == ["1"]
    assert job.run(*mode, "-np", "1", *show).of(0) == [str(CORES)]
    assert job.run(*mode, "-np", "2", *show, OMP_NUM_THREADS="7").of(1) == ["7"]


def test_freed_memory_is_kept_unless_told_otherwise(job: Job, mode: list[str]) -> None:
    show = ["sh", "-c", "echo $MALLOC_TRIM_THRESHOLD_ $MALLOC_MMAP_THRESHOLD_"]
    assert job.run(*mode, "-np", "2", *show).of(1) == [f"{1 << 30} {32 << 20}"]
    found = job.run(*mode, "-np", "2", *show, MALLOC_TRIM_THRESHOLD_="1000").of(1)
    assert found == [f"1000 {32 << 20}"]


def test_rank_0_reads_standard_input(job: Job, any_mode: list[str]) -> None:
    result = job.run(*any_mode, "-np", "2", "sh", "-c", "cat; echo end", stdin="one\ntwo\n")
    assert result.of(0) == ["one", "two", "end"]
    assert result.of(1) == ["end"]


def test_settings_reach_the_ranks(job: Job, mode: list[str], tmp_path: Path) -> None:
    config = tmp_path / "job.yaml"
    config.write_text("logging:\n  level: info\nparams:\n  fusion_threshold_mb: 8\n")
    show = "echo $HOROACC_FUSION_THRESHOLD $HOROACC_LOG_LEVEL $HOROACC_STALL_CHECK_DISABLE"
    result = job.run(
        *mode,
        *("-np", "1", "--config-file", str(config)),
        *("--fusion-threshold-mb", "4", "--no-stall-check"),
        *("sh", "-c", show),
        HOROVOD_LOG_LEVEL="error",
    )
    assert result.of(0) == [f"{4 << 20} info 1"]


def test_an_outer_jobs_variables_do_not_leak(job: Job) -> None:
    show = "echo ${HOROACC_RANK} ${OMPI_COMM_WORLD_RANK:-none} ${PMI_RANK:-none}"
    outer = {"HOROACC_RANK": "7", "OMPI_COMM_WORLD_RANK": "7", "PMI_RANK": "7"}
    assert job.run("--tcp", "-np", "1", "sh", "-c", show, **outer).of(0) == ["0 none none"]


def test_mpi_programs_meet(job: Job) -> None:
    program = "from mpi4py import MPI; w = MPI.COMM_WORLD; print(w.rank, w.allreduce(w.rank + 1))"
    result = job.run("--mpi", "-np", "3", sys.executable, "-c", program)
    assert [result.of(rank) for rank in range(3)] == [[f"{rank} 6"] for rank in range(3)]


def test_mpi_args_are_passed_on(job: Job) -> None:
    flags = ["--mpi", "--mpi-args", "-x 'GIVEN=a b'", "-np", "2"]
    assert job.run(*flags, "sh", "-c", 'echo "$GIVEN"').of(1) == ["a b"]


def test_output_of_ranks_that_cannot_reach_the_launcher(job: Job) -> None:
    """Ranks on other hosts print through mpirun; here the shims are given a wrong name."""
    job.starter = patched(
        "import horoacc.launcher.mpirun as m; start = m.subprocess.Popen;"
        "m.subprocess.Popen = lambda line, env=None, **k: start("
        "line, env=env and env | {'HOROACC_OUTPUT_SOCKET': 'nobody'}, **k)"
    )
    result = job.run("--mpi", "-np", "2", "sh", "-c", f"echo at {RANK}; echo no >&2")
    assert (result.of(0), result.of(1)) == (["at 0"], ["at 1"])
    assert (result.of(0, "err"), result.of(1, "err")) == (["no"], ["no"])
    assert job.run("--mpi", "-np", "2", "sh", "-c", "exit 5", code=5)


def test_hosts_of_this_machine(job: Job, tmp_path: Path) -> None:
    hostfile = tmp_path / "hosts"
    hostfile.write_text("# this one\nlocalhost slots=2\n")
    for flags in (["-H", "localhost:2"], ["--hostfile", str(hostfile)]):
        assert len(job.run("--tcp", *flags, "echo", "here").out.splitlines()) == 2
    result = job.run("--tcp", *flags, "-np", "1", "echo", "here")
    assert result.out == "[0] here\n"
    assert len(job.run("--mpi", "-H", "localhost:2", "echo", "here").out.splitlines()) == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["echo"], ["-np is missing"]),
        (["-np", "0", "echo"], ["at least 1"]),
        (["-np", "2"], ["command", "missing"]),
        (["-np", "3", "-H", "localhost:2", "echo"], ["3 ranks", "localhost:2", "2 slots"]),
        (["-np", "1", "-H", "localhost:x", "echo"], ["localhost:x", "host:slots"]),
        (["-np", "1", "--hostfile", "/nowhere", "echo"], ["/nowhere", "No such file"]),
        (["-np", "1", "--arena", "most", "echo"], ["--arena", "gradients", "most"]),
        (["-np", "1", "--start-timeout", "soon", "echo"], ["--start-timeout", "soon"]),
        (["-np", "1", "--fusion-threshold-mb", "-1", "echo"], ["--fusion-threshold-mb", "-1"]),
        (["-np", "1", "--unheard-of", "echo"], ["--unheard-of"]),
    ],
)
def test_wrong_command_lines(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: list[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert [word for word in words if word not in last] == []


def test_a_wrong_command_line_starts_nothing(job: Job) -> None:
    assert job.run("-np", "0", "echo", "started", code=2).out == ""


def test_wrong_variables_are_named_before_anything_starts(job: Job) -> None:
    result = job.run("-np", "1", "echo", "started", code=2, HOROVOD_FUSION_THRESHOLD="lots")
    assert "HOROVOD_FUSION_THRESHOLD must be a whole number, not 'lots'" in result.err
    assert result.out == ""


def test_programs_that_cannot_start(job: Job, any_mode: list[str], tmp_path: Path) -> None:
    result = job.run(*any_mode, "-np", "2", "no-such-program", code=127)
    assert result.err == ("horoaccrun: cannot start 'no-such-program': there is no such program\n")
    text = tmp_path / "text"
    text.write_text("not a program")
    assert "not executable" in job.run(*any_mode, "-np", "2", str(text), code=126).err
    text.chmod(0o755)  # executable, but of no format that the kernel knows
    assert "cannot start" in job.run(*any_mode, "-np", "2", str(text), code=None).err


def test_other_hosts_need_an_engine(job: Job) -> None:
    job.starter = patched(NO_MPIRUN)
    for flags in (["--tcp"], []):
        result = job.run(*flags, "-np", "2", "-H", "host.invalid:2", "echo", code=1)
        assert "no mpirun was found, and host.invalid is another host" in result.err


def test_over_tcp_rank_0_is_on_the_launchers_host(job: Job) -> None:
    hosts = "host.invalid:1,localhost:1"
    result = job.run("--tcp", "-np", "2", "-H", hosts, "echo", code=1)
    assert "the ranks meet on the first host, which is host.invalid" in result.err
    result = job.run("--tcp", "-np", "2", "-H", "localhost:1,host.invalid:1", "echo", code=1)
    assert "there is no way to host host.invalid" in result.err


def test_mpi_cannot_negotiate_for_ranks_that_it_did_not_start(job: Job) -> None:
    result = job.run("--tcp", "--control", "mpi", "-np", "2", "echo", code=1)
    assert "--control mpi needs ranks that an mpirun started" in result.err and result.out == ""
    program = [sys.executable, "-c", "import horoacc; horoacc.init()"]
    result = job.run("--tcp", "-np", "2", "env", "HOROACC_CONTROL=mpi", *program, code=1)
    assert "setting 'control' can be 'mpi' only if one mpirun started all ranks" in result.err


PINNED_PROGRAM = """
import pathlib, sys, time
import horoacc as hvd
hvd.init()
def cores():
    tasks = pathlib.Path("/proc/self/task").iterdir()
    named = [task for task in tasks if (task / "comm").read_text() == "horoacc\\n"]
    lists = [(task / "status").read_text().split("Cpus_allowed_list:")[1] for task in named]
    return [text.split()[0] for text in lists]
deadline = time.monotonic() + 10
while cores() != [sys.argv[1 + hvd.rank()]] and time.monotonic() < deadline:
    time.sleep(0.01)
print(*cores())
"""


def test_engine_threads_run_where_they_are_told(job: Job) -> None:
    given = sorted(os.sched_getaffinity(0))
    cores = [str(given[0]), str(given[-1])]
    program = [sys.executable, "-c", PINNED_PROGRAM, *cores]
    flag = "--thread-affinity"
    result = job.run("--tcp", "-np", "2", flag, ",".join(cores), *program)
    assert [result.of(rank) for rank in range(2)] == [[core] for core in cores]
    result = job.run("--tcp", "-np", "2", flag, cores[0], *program, code=1)
    assert "'thread_affinity' names 1 cores for 2 local ranks" in result.err
    result = job.run("--tcp", "-np", "2", flag, "first", *program, code=1)
    assert "setting 'thread_affinity' cannot be 'first'" in result.err


def test_a_wrong_mpirun_is_named(job: Job) -> None:
    assert (
        "'/nowhere/mpirun' is no program"
        in job.run("--mpirun", "/nowhere/mpirun", "-np", "1", "echo", code=1).err
    )
    assert (
        "neither Open MPI's nor MPICH's"
        in job.run("--mpirun", "/bin/echo", "-np", "1", "echo", code=1).err
    )


def test_without_mpirun_it_says_so_and_runs(job: Job) -> None:
    job.starter = patched(NO_MPIRUN)
    result = job.run("-np", "2", "echo", "hello")
    assert result.err == (
        "horoaccrun: no mpirun was found: starting 2 ranks on this host over TCP\n"
    )
    assert result.out == "[0] hello\n[1] hello\n" or result.out == "[1] hello\n[0] hello\n"
    refused = job.run("--mpi", "-np", "2", "echo", code=1)
    assert "--mpi was asked for, but no mpirun was found" in refused.err


def test_flags_without_a_meaning_are_explained(job: Job) -> None:
    result = job.run("--tcp", "--cycle-time-ms", "5", "--no-torus-allreduce", "-np", "1", "true")
    assert "--cycle-time-ms has no effect: the engine wakes on submission" in result.err
    assert "--no-torus-allreduce has no effect" in result.err


def test_version_and_check_build(job: Job) -> None:
    from horoacc import cuda_plugin
    from horoacc._version import __version__

    assert job.run("--version").out.strip() == __version__
    shown = job.run("--check-build").out
    for line in (f"HoroACC v{__version__}:", "Available Frameworks:", "    [X] TCP"):
        assert line in shown.splitlines()
    built = cuda_plugin.LIBRARY.is_file()
    whole = job.run("--check-build", "--verbose").out.splitlines()
    assert f"    [{'X' if built else ' '}] CUDA plug-in" in whole
    assert f"GPUs: {cuda_plugin.trouble() or 'they work'}" in whole
    assert f"NCCL: {cuda_plugin.nccl('libnccl.so.2')}" in whole
    assert any(re.match(r"Between hosts: OpenSSL \d", line) for line in whole)
    shown = job.run("--check-build", HOROACC_CRYPTO_LIBRARY="/nowhere").out
    assert "Between hosts: HMAC-SHA256 instead of AES-GCM: no libcrypto" in shown
    assert [line.strip() for line in whole[-len(cuda_plugin.NOT_RUN) :]] == [*cuda_plugin.NOT_RUN]


def blocks(shown: str) -> dict[str, list[str]]:
    """The lines of each block of horovodrun's report, as scripts read it."""
    parts = [part.splitlines() for part in shown.split("\n\n")]
    return {lines[0]: lines[1:] for lines in parts if lines[0].startswith("Available ")}


@pytest.mark.parametrize("core", [True, False], ids=["core", "no core"])
def test_check_build_fits_a_screen(job: Job, tmp_path: Path, core: bool) -> None:
    """Also with paths and errors that are longer than a line."""
    deep = tmp_path / ("deep" * 30)
    deep.mkdir()
    (deep / "mpirun").symlink_to(Path(sys.executable).parent / "mpirun")
    if not core:
        job.starter = patched("import sys; sys.modules['horoacc._core'] = None")
    shown = job.run("--mpirun", str(deep / "mpirun"), "--check-build", code=0 if core else 1).out
    lines = shown.splitlines()
    assert len(lines) <= 24 and max(map(len, lines)) <= 80
    assert list(blocks(shown)) == [
        "Available Frameworks:", "Available Controllers:", "Available Tensor Operations:"
    ]  # fmt: skip
    for block in blocks(shown).values():
        assert block and all(re.fullmatch(r" {4}\[[X ]\] \S.*", line) for line in block)
    assert ("    [X] Shared memory" in lines) is core
    mpirun = next(line for line in lines if line.startswith("mpirun: "))
    assert mpirun.startswith("mpirun: /") and re.search(r"/mpirun \(openmpi [\d.]+\)$", mpirun)
    verbose = ("--mpirun", str(deep / "mpirun"), "--verbose", "--check-build")
    assert f"mpirun: {deep}/mpirun (openmpi " in job.run(*verbose, code=None).out


@pytest.mark.parametrize(
    ("nodes", "setting", "told"),
    [
        (
            1,
            "always within_size [advise] never",
            "1 NUMA node; huge pages for shared memory: advise",
        ),
        (2, "always advise [never] deny", "2 NUMA nodes; no huge pages: 'never' in "),
        (0, None, "1 NUMA node; the kernel has no huge pages for shared memory"),
    ],
)
def test_check_build_tells_of_memory(
    tmp_path: Path, nodes: int, setting: str | None, told: str
) -> None:
    from horoacc.launcher.check_build import _memory

    for node in range(nodes):
        (tmp_path / f"devices/system/node/node{node}").mkdir(parents=True)
    if setting:
        file = tmp_path / "kernel/mm/transparent_hugepage/shmem_enabled"
        file.parent.mkdir(parents=True)
        file.write_text(f"{setting}\n", encoding="ascii")
    assert _memory(str(tmp_path)).startswith(told)


def test_check_build_of_a_build_without_nvcc(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import horoacc
    from horoacc import cuda_plugin
    from horoacc.launcher import check_build

    for built in (False, True):
        monkeypatch.setattr(cuda_plugin, "LIBRARY", tmp_path / "libhoroacc_cuda.so")
        if built:
            cuda_plugin.LIBRARY.touch()
        text, works = check_build.report("", {})
        assert works
        assert f"    [{'X' if built else ' '}] CUDA plug-in" in text.splitlines()
        assert horoacc.cuda_built() is built


def test_a_missing_core_is_told_in_a_line(job: Job) -> None:
    job.starter = patched("import sys; sys.modules['horoacc._core'] = None")
    result = job.run("--check-build", code=1)
    assert "    [ ] TCP" in result.out.splitlines() and "Traceback" not in result.err
    assert "The core cannot be loaded: " in result.out
    program = "import sys; sys.modules['horoacc._core'] = None; import horoacc; horoacc.init()"
    result = job.run("--tcp", "-np", "1", sys.executable, "-c", program, code=1)
    assert "ConfigError: the core of HoroACC cannot be loaded" in result.err


def test_the_arguments_of_the_program_are_its_own(job: Job, mode: list[str]) -> None:
    result = job.run(*mode, "-np", "1", "echo", "-np", "3", "--tcp", "a  b", "--", "*")
    assert result.of(0) == ["-np 3 --tcp a  b -- *"]


@pytest.mark.parametrize(
    ("flavour", "version", "expected"),
    [
        ("openmpi", "5.0.11", "--prtemca plm_ssh_agent /a/enter --mca btl_tcp_if_include eth1,eth0 "
         "--prtemca prte_if_include eth1 "),
        ("openmpi", "4.1.6", "--mca plm_rsh_agent /a/enter --mca btl_tcp_if_include eth1,eth0 "
         "--mca oob_tcp_if_include eth1,eth0"),
        ("mpich", "5.0.2", "-launcher rsh -launcher-exec /a/enter -iface eth1"),
    ],
)  # fmt: skip
def test_mpirun_is_told_how_to_reach_other_hosts(flavour: str, version: str, expected: str) -> None:
    flags = ["--launch-agent", "/a/enter", "--network-interfaces", "eth1, eth0"]
    options = parse_arguments([*flags, "-np", "2", "-H", "a,b", "true"], {})
    line = command_line(Mpirun("/x/mpirun", flavour, version), options, {}, 2, {})
    assert expected in shlex.join(line)


@pytest.mark.parametrize(
    ("line", "variables", "threads"),
    [
        (["-np", "2"], {"SLURM_CPUS_PER_TASK": "16"}, 4),
        (["-np", "4", "-H", "localhost:2,203.0.113.1:2"], {"SLURM_CPUS_PER_TASK": "16"}, 4),
        (["-np", "4", "-H", "203.0.113.1:2,203.0.113.2:2"], {}, 4),
        (["-np", "4", "-H", "203.0.113.1:2,203.0.113.2:2"], {"SLURM_CPUS_PER_TASK": "16"}, 16),
        (["-np", "4"], {"OMP_NUM_THREADS": "3"}, 3),
    ],
)
def test_ranks_on_other_hosts_have_their_cores(
    monkeypatch: pytest.MonkeyPatch, line: list[str], variables: dict[str, str], threads: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    options = parse_arguments([*line, "true"], variables)
    assert rank_environ(variables, options)["OMP_NUM_THREADS"] == str(threads)
