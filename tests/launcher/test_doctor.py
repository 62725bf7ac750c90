"""`horoaccrun doctor` on this host, and on hosts of the laboratory that lack something."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from faulty_hosts import (
    BIN,
    CLOCK,
    DRIVER,
    SECCOMP,
    Examined,
    Laboratory,
    Network,
    dropped,
    examine,
    missing,
)
from launcher_jobs import Job

from horoacc import settings
from horoacc.launcher.doctor import limits, probe, software
from horoacc.launcher.doctor.command import reached
from horoacc.launcher.doctor.findings import Finding
from horoacc.launcher.doctor.hosts import Seen
from horoacc.launcher.doctor.reach import RemoteProgram, Unreached
from horoacc.launcher.mpirun import Mpirun


@pytest.fixture(scope="module")
def lab() -> Iterator[Laboratory]:
    """Hosts h1 to h3 on two networks."""
    if reason := missing():
        pytest.skip(reason)
    with Laboratory(Network(hosts=3, rails=2)) as hosts:
        yield hosts


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clock that is 30 s ahead, and a driver's library with one GPU."""
    folder = tmp_path_factory.mktemp("libraries")
    for name, text in (("clock.so", CLOCK), ("libcuda.so.1", DRIVER)):
        command = ["g++", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(folder / name)]
        subprocess.run(command, input=text.encode(), check=True)
    return folder


def test_this_host_is_fine_and_each_finding_is_a_line(job: Job) -> None:
    shown = job.run("doctor", "-np", "1", HOROACC_WINDOW_BITES="1").out
    *lines, empty, summary = shown.splitlines()
    host = os.uname().nodename
    findings = [line for line in lines if not line.startswith("         -> ")]
    advised = [above for above, line in pairwise(lines) if line.startswith("         -> ")]
    assert all(re.match(rf"(ok|warning) +{host} +\S", line) for line in findings)
    assert [line for line in findings if line.startswith("warning")] == advised
    told = f"warning  {host}  variables      HOROACC_WINDOW_BITES is no variable of HoroACC's"
    assert any(line.startswith(told) for line in advised)
    assert "         -> did you mean HOROACC_WINDOW_BYTES?" in lines
    (ran,) = (line for line in findings if re.search(r"  job  ", line))
    assert re.search(r"2 ranks reduced 1 MiB in [\d.]+ ms$", ran)
    assert empty == "" and re.match(rf"0 errors and \d+ warnings? on {host}", summary)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--seconds", "0"], "--seconds must be above 0, not 0"),
        (["-np", "0"], "-np must be at least 1, not 0"),
        (["-np", "5", "-H", "a:2,b:2"], "-np asks for 5 ranks, but a:2, b:2 has 4 slots"),
        (["--jsom"], "unrecognized arguments: --jsom"),
    ],
)
def test_a_wrong_command_line(job: Job, flags: list[str], said: str) -> None:
    assert said in job.run("doctor", *flags, code=2).err


def test_hosts_that_are_fine(lab: Laboratory, tmp_path: Path) -> None:
    flags = ["-H", "h1:2,h2:1", "--network-interfaces", "eth1", sys.executable, __file__]
    seen = examine(lab, tmp_path, {}, *flags)
    unusual = [f for f in seen.findings if f.level != "ok" and "HOROACC_LAB" not in f.value]
    assert (unusual, seen.code) == ([], 0)
    for host, other in (("h1", 2), ("h2", 1)):
        way = "this host" if host == "h1" else "by agent, without a password"
        seen.expect("reach", host, "ok", way, "^$")
        seen.expect("names", host, "ok", f"h{other} is 10.77.0.{other}", "^$")
        ways = rf"TCP to h{other} \(10.77.0.{other}\), h{other} \(10.77.1.{other}\)$"
        seen.expect("ports", host, "ok", ways, "^$")
        seen.expect("interfaces", host, "ok", r"chosen: eth1 10.77.1.\d/24 \(MTU 9000", "^$")
        seen.expect("paths", host, "ok", f"{sys.executable}, .*{__file__}", "^$")
    seen.expect("clock", "h2", "ok", r"within \d+ ms", "^$")
    seen.expect("cores", "h2", "ok", r"1 rank on \d+ cores", "^$")
    seen.expect("job", "h1", "ok", r"3 ranks reduced 1 MiB in [\d.]+ ms", "^$")


@pytest.fixture(scope="module")
def poor(
    lab: Laboratory, libraries: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Examined]:
    """h2 lacks nearly everything."""
    folder = tmp_path_factory.mktemp("poor")
    (folder / "old" / "horoacc").mkdir(parents=True)
    (folder / "old" / "horoacc" / "__init__.py").touch()
    (folder / "old" / "horoacc" / "_version.py").write_text('__version__ = "0.0.9"\n')
    (folder / "mpirun").write_text("#!/bin/sh\necho 'mpirun (Open MPI) 4.1.6'\n")
    (folder / "mpirun").chmod(0o755)
    (folder / "seccomp.py").write_text(SECCOMP)
    fault = f"""
mount -t tmpfs -o size=64m tmpfs /dev/shm
mount -t tmpfs tmpfs /sys/fs/cgroup
cd /sys/fs/cgroup
echo 200000000 > memory.max; echo 190000000 > memory.current; echo inactive_file 5000 > memory.stat
echo 50000 100000 > cpu.max; echo 20 > pids.max; echo 14 > pids.current
cd /
mount --bind {folder}/mpirun {BIN}/mpirun
ip link set eth0 mtu 1500
ulimit -l 16; ulimit -n 40; ulimit -v 30000000
export HOROACC_FUSION_TRESHOLD=1 HOROACC_WINDOW_BYTES=4096 HOROACC_CONTROL=smoke
export HOROACC_SECRET=geheim NCCL_DEBUG=INFO PYTHONPATH={folder}/old
export LD_PRELOAD={libraries}/clock.so LD_LIBRARY_PATH={libraries}
WRAP="{sys.executable} {folder}/seccomp.py"
"""
    flags = ["-H", "h1:2,h2:2", "--network-interfaces", "eth0"]
    seen = examine(lab, folder, {"h2": fault}, *flags, HOROACC_WINDOW_BYTES="8192")
    lab.hosts["h2"].run(["ip", "link", "set", "eth0", "mtu", "9000"])
    assert seen.code == 1
    assert "geheim" not in str(seen.findings)
    yield seen


@pytest.mark.parametrize(
    ("check", "level", "value", "advice"),
    [
        ("shared memory", "warning", "/dev/shm has 64 MiB, 64 MiB free", "--shm-size=1g"),
        ("memory", "error", "limit is 191 MiB, 9.54 MiB of it unused", "fewer ranks than 2 .*max"),
        ("cores", "warning", "2 ranks on .* the cgroup grants 0.5", "cpu.max"),
        ("processes", "error", "20 in the cgroup, 6 of them unused", "--pids-limit"),
        ("memlock", "warning", "^16 KiB", "memlock=-1"),
        ("nofile", "error", "^40 descriptors; .* needs about 48", "ulimit -n 65536"),
        ("address space", "error", "^28.6 GiB; .* reserves", "HOROACC_ARENA=off"),
        ("kernel", "warning", "pidfd_open: Operation not permitted .*seccomp", "profile"),
        ("interfaces", "warning", "eth0 has MTU 1500, .* have 9000", "ip link set"),
        ("clock", "warning", r"^(29.9|30.\d) s ahead of this host's", "chrony"),
        ("versions", "error", r"^HoroACC 0.0.9, elsewhere [\d.]+ \(in .*old/horoacc\)$", "same"),
        ("MPI", "error", r"mpirun is not Open MPI [\d.]+: it says .* 4.1.6$", "same path"),
        ("GPUs", "warning", "1 x Paper GPU visible of 0, .* CUDA 13.1; plug-in: ", "docs/gpu"),
        ("GPUs", "warning", "GPUs: Paper GPU, elsewhere none", "alike"),
        ("variables", "warning", "HOROACC_FUSION_TRESHOLD is no ", "mean HOROACC_FUSION_THRESHOLD"),
        ("variables", "warning", "HOROACC_WINDOW_BYTES is 4096 here, and 8192 on", "passes its"),
        ("variables", "ok", "NCCL_DEBUG=INFO", "^$"),
    ],
)  # fmt: skip
def test_what_a_host_lacks(poor: Examined, check: str, level: str, value: str, advice: str) -> None:
    poor.expect(check, "h2", level, value, advice)
    assert not [found for found in poor.of(check, "h1") if found.level == "error"]


def test_no_job_runs_where_there_are_errors(poor: Examined) -> None:
    poor.expect("job", "h1", "warning", "not tried", "mend them")


HOSTS_FILE = """
umount /etc/hosts
printf '%s\\n' '127.0.0.1 localhost' {0} > $0.hosts
mount --bind $0.hosts /etc/hosts"""
# Nobody has the address, so that a query for a name is lost.
DEAD_RESOLVER = "echo nameserver 10.77.0.99 > $0.dns; mount --bind $0.dns /etc/resolv.conf\n"


def test_firewalls_and_ways_that_lead_nowhere(lab: Laboratory, tmp_path: Path) -> None:
    """Packets that open connections from h1 to h2 are lost, and large ones from h1 to h3."""
    second = "0x0a4d0002"  # 10.77.0.2, to which no name leads back where /etc/hosts has none
    opening = "match ip dst 10.77.0.2 match ip protocol 6 0xff match u8 0x02 0x12 at 33"
    large = "match ip dst 10.77.0.3 match u16 0x2000 0x2000 at 2"
    nameless = HOSTS_FILE.format("'10.77.0.1 h1' '10.77.0.3 h3'")
    lab.hosts["h2"].run(["ip", "route", "add", "prohibit", "10.77.0.3/32"])
    with dropped(lab, "h1", opening, large):
        seen = examine(
            lab, tmp_path, {"h1": nameless, second: ":"}, "-H", f"h1,{second},h3",
            seconds=4, places={second: "h2"},
        )  # fmt: skip
    lab.hosts["h2"].run(["ip", "route", "del", "prohibit", "10.77.0.3/32"])
    assert seen.code == 1
    silent = rf"^TCP to {second} \(10.77.0.2\): timed out$"
    seen.expect("ports", "h1", "error", silent, "firewall drops it")
    narrow = r"^TCP to h3 \(10.77.0.3\) connects, but 1 MiB of data did not get through: timed out$"
    seen.expect("ports", "h1", "error", narrow, "one MTU")
    seen.expect("ports", second, "error", r"^TCP to h3 .*: Permission denied$", f"get` on {second}")
    seen.expect("ports", second, "ok", r"^TCP to h1 \(10.77.0.1\)$", "^$")
    seen.expect("ports", "h3", "error", "^TCP to h1 .* 1 MiB of data did not get", "one MTU")
    seen.expect("names", "h1", "warning", f"{second} is 10.77.0.2, and no name leads back", "PTR")
    seen.expect("interfaces", "h3", "warning", "^several networks: eth0 .*, eth1 ", "--network-int")


def test_names_that_lead_astray(lab: Laboratory, tmp_path: Path) -> None:
    faults = {
        "h1": DEAD_RESOLVER + HOSTS_FILE.format("'10.77.0.1 h1' '10.77.0.3 h2'"),
        "h2": "hostname h1; " + HOSTS_FILE.format("'10.77.0.1 h1' '127.0.1.1 h2'"),
        "ghost": ":",
    }
    flags = ["-H", "h1,h2,ghost", "--network-interfaces", "eth7"]
    seen = examine(lab, tmp_path, faults, *flags, seconds=4, places={"ghost": "h3"})
    assert seen.seconds < 30
    seen.expect("names", "h1", "error", "'ghost' does not resolve: no answer in 2 s", "DNS")
    for host in ("h1", "h2"):
        unknown = "'ghost' does not resolve: "
        seen.expect("names", host, "error", unknown, f"/etc/hosts of {host}")
    seen.expect("names", "h2", "warning", "h2 is 127.0.1.1, which only h2", "/etc/hosts of h2")
    seen.expect("names", "h2", "error", "its host name is 'h1', as h1's", "hostnamectl")
    seen.expect("ports", "h1", "error", r"^TCP to h2 \(10.77.0.3\): refused$", "another machine")
    seen.expect("interfaces", "h1", "error", "has no interface eth7, only lo, eth0, eth1", "is up")


def test_hosts_that_cannot_be_reached(lab: Laboratory, tmp_path: Path) -> None:
    """Each for its own reason, and all within the limit: h5 has another Python and a greeting."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sh").symlink_to("/bin/sh")
    hide = f"mount -t tmpfs tmpfs {BIN}"
    python = Path(sys._base_executable).resolve().parent  # type: ignore[attr-defined]
    faults = {
        "h2": """exec sh -c 'echo "root@h2: Permission denied (publickey)." >&2; exit 255'""",
        "h3": "exec sleep 612",
        "h4": f"{hide}; PATH={{folder}}/bin".format(folder=tmp_path),
        "h5": f"{hide}; PATH={python}:$PATH; echo Welcome",
        "h6": "exec false",
    }
    hosts = "h1,h2,h3,h4,h5,h6"
    seen = examine(
        lab, tmp_path, faults, "-H", hosts, seconds=4, places={"h4": "h2", "h5": "h3"}
    )  # fmt: skip
    assert seen.code == 1 and seen.seconds < 60
    for host, value, advice in (
        ("h2", r"^by agent: root@h2: Permission denied \(publickey\).$", "ssh-copy-id h2"),
        ("h3", "^by agent: no answer to 'facts' within 4 s$", "--seconds gives it more"),
        ("h4", f"^by agent: no Python there: neither {sys.executable} nor", "same path"),
        ("h6", "^by agent: the connection ended with code 1 and no message", "by hand: .*agent"),
    ):
        seen.expect("reach", host, "error", value, advice)
        assert not seen.of("memory", host)
    seen.expect("reach", "h5", "ok", "by agent", "^$")
    told = f"^there is no {sys.executable}; the probe ran with {python}/python"
    seen.expect("paths", "h5", "error", told, "same path")
    seen.expect("memory", "h5", "ok", "GiB", "^$")
    left = lab.hosts["h1"].run(["ps", "-eo", "args"], stdout=subprocess.PIPE, text=True).stdout
    assert "sleep 612" not in left and "doctor" not in left


def test_ssh_is_told_not_to_ask(lab: Laboratory, tmp_path: Path) -> None:
    """No host of the laboratory runs sshd; nobody has the last address."""
    flags = ["-H", "h1,h2,10.77.0.99,h0", "--launch-agent", "ssh"]
    flags += ["--mpi-args", "--mca plm_ssh_args '-p 2222'"]
    seen = examine(lab, tmp_path, {}, *flags, seconds=4)
    refused = "^by ssh: ssh: connect to host h2 port 2222: Connection refused"
    seen.expect("reach", "h2", "error", refused, "start sshd on h2")
    nobody = "^by ssh: .* 10.77.0.99 .*(No route to host|timed out)"
    seen.expect("reach", "10.77.0.99", "error", nobody, "see whether 10.77.0.99 runs")
    seen.expect("reach", "h0", "error", "^by ssh: .*(resolve|known)", "add h0 to DNS")
    absent = examine(lab, tmp_path, {}, "-H", "h1,h2", "--launch-agent", "/no/agent", seconds=4)
    absent.expect("reach", "h2", "error", "cannot start /no/agent: No such file", "--launch-agent")


@pytest.mark.parametrize(
    ("shell", "agent", "flavour", "level"),
    [
        ("/bin/tcsh", "ssh", "openmpi", "warning"),
        ("/bin/tcsh", "enter", "openmpi", "ok"),
        ("/bin/tcsh", "ssh", "mpich", "ok"),
        ("/bin/bash", "ssh", "openmpi", "ok"),
    ],
)
def test_login_shells_that_mpirun_cannot_use(
    shell: str, agent: str, flavour: str, level: str
) -> None:
    host = Seen("b", 1, False, {"shell": shell})
    (found,) = reached([host], agent, Mpirun("/x/mpirun", flavour, "5.0.1"))
    assert (found.level, shell in found.value) == (level, level != "ok")


def test_a_job_that_fails_is_an_error(job: Job) -> None:
    shown = job.run("doctor", "--mpi-args=--no-such-flag", code=1).out
    told = r"^error +\S+ +job +2 ranks ended with code [1-9]\d*: .*Option: --no-such-flag"
    assert re.search(told, shown, re.MULTILINE)
    assert re.search(r"^ +-> try by hand: horoaccrun -np 2 --verbose hostname", shown, re.MULTILINE)


def test_an_mpirun_of_no_kind(job: Job) -> None:
    shown = job.run("doctor", "--mpirun", "/bin/echo", code=1).out
    assert re.search(r"^error +\S+ +MPI +/bin/echo is neither Open MPI's nor MPICH's", shown, re.M)


def test_the_probe_needs_only_an_old_python() -> None:
    source = Path(probe.__file__).read_text()
    tree = ast.parse(source, feature_version=(3, 7))
    imported = {
        alias.name if isinstance(node, ast.Import) else str(node.module)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    assert {name.partition(".")[0] for name in imported} <= sys.stdlib_module_names


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        (  # version 2; the outer group's limit is the lower one
            "0::/a/b",
            {"a/memory.max": "4096", "a/memory.current": "96", "a/b/memory.max": "max",
             "a/b/pids.max": "50", "a/cpu.max": "150000 100000", "a/b/cpu.max": "max 100000"},
            {"memory": 4096, "memory_used": 96, "pids": 50, "cores": 1.5},
        ),
        (  # version 1, whose "no limit" is a large number
            "4:memory:/x\n3:cpu,cpuacct:/y\n2:pids:/z\n1:name=systemd:/",
            {"memory/x/memory.limit_in_bytes": "9223372036854771712",
             "cpu/y/cpu.cfs_quota_us": "-1", "cpu/y/cpu.cfs_period_us": "100000",
             "pids/z/pids.max": "max"},
            {},
        ),
        (  # version 1 in a container, where the outer names do not exist
            "4:memory:/docker/1234\n3:cpu:/docker/1234",
            {"memory/memory.limit_in_bytes": "8192", "memory/memory.usage_in_bytes": "500",
             "memory/memory.stat": "cache 1\ntotal_inactive_file 100",
             "cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"},
            {"memory": 8192, "memory_used": 400, "cores": 0.5},
        ),
    ],
)  # fmt: skip
def test_control_groups(
    tmp_path: Path, groups: str, files: dict[str, str], expected: dict[str, float]
) -> None:
    for name, text in files.items():
        path = tmp_path / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    (tmp_path / "own").write_text(groups + "\n")
    assert probe.cgroup(str(tmp_path / "cgroup"), str(tmp_path / "own")) == expected


CUINIT = {"count": 0, "names": [], "error": "cuInit: unknown error (999)"}
H100 = {"count": 1, "names": ["H100"], "cuda": "13.1", "trouble": ""}


@pytest.mark.parametrize(
    ("facts", "rank", "expected"),
    [
        ({"devices": {"rdma": ["mlx5_0"]}, "limits": {"MEMLOCK": 1 << 20}}, {},
         ("memlock", "warning", "1 MiB, too little for mlx5_0")),
        ({"devices": {"rdma": ["mlx5_0"]}, "limits": {"MEMLOCK": -1}}, {},
         ("memlock", "ok", "unlimited")),
        ({"kernel": {"memfd": "Function not implemented"}}, {},
         ("kernel", "error", "memfd_create: Function not implemented")),
        ({"shm": {}}, {}, ("shared memory", "warning", "there is no /dev/shm")),
        ({"devices": {"gpus": 2, "driver": "580.1"}}, {"gpus": CUINIT},
         ("GPUs", "error", "2 device files, driver 580.1: cuInit: unknown error (999)")),
        ({"devices": {"gpus": 2, "driver": "580.1"}}, {"gpus": H100},
         ("GPUs", "warning", "1 x H100 visible of 2, driver 580.1, CUDA 13.1; 2 ranks")),
        ({}, {"end": "no answer in 60 s"}, ("versions", "error", "no answer in 60 s")),
        ({}, {"core": "no libc"}, ("versions", "error", "the core cannot be loaded: no libc")),
        ({}, {"packages": {}}, ("versions", "error", "HoroACC is not installed")),
        ({"variables": {"HOROACC_CONTROL": "smoke"}}, {},
         ("variables", "error", "HOROACC_CONTROL must be one of auto, shm, tcp, mpi, not 'smoke'")),
        ({"variables": {"HOROVOD_CYCLE_TIME": "5"}}, {},
         ("variables", "ok", "HOROVOD_CYCLE_TIME has no effect")),
    ],
)  # fmt: skip
def test_what_this_machine_cannot_have(
    facts: dict[str, Any], rank: dict[str, Any], expected: tuple[str, str, str]
) -> None:
    """Findings from what a probe would tell: a driver that fails, RDMA, a kernel without memfd."""
    told = probe.facts(sys.executable, [])
    for name, change in facts.items():
        told[name] = {**told[name], **change} if change and name != "variables" else change
    usual = {"horoacc": {"version": "1", "folder": "/x"}}
    host = Seen("a", 2, True, told, {"python": "3.11.1", "packages": usual, "end": ""} | rank)
    found: list[Finding] = [*limits.judge(host, 2, settings.read({}))]
    found += software.judge([host], None, set())
    check, level, value = expected
    assert any(
        one.check == check and one.level == level and value in one.value and
        bool(one.advice) == (level != "ok")
        for one in found
    ), found  # fmt: skip


def test_damaged_answers_are_as_none() -> None:
    said = [*("{", "[]", "{}", '{"id": 9}', "[" * 100_000), '{"id": 1, "answer": 7}']
    lines = [probe.MARK + one for one in said]
    script = f"input(); input(); print(*{lines!r}, sep=chr(10))"
    program = RemoteProgram("h", [sys.executable, "-c", script])
    with pytest.raises(Unreached, match="no answer to 'x' within"):
        program.ask("x", 0.1)
    assert program.ask("x", 60) == 7 and not program._replies
    with pytest.raises(Unreached, match="ended with code 0"):
        program.ask("x", 60)
    program.close()
