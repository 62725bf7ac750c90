"""Any text of a file, variable, flag or process is read, or refused with a typed error."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hypothesis import strategies as st
from seeds import fuzzed

from horoacc.launcher import environment, shim
from horoacc.launcher.config_file import ConfigFileError, read_config
from horoacc.launcher.environment.placement import PlacementError
from horoacc.launcher.hosts import HostsError, parse_hosts, read_hostfile
from horoacc.launcher.shim_listener import ShimListener
from horoacc.launcher.slurm import allocation
from horoacc.settings import TABLE, SettingError, core_settings, parse_given

SECRET = "a secret"
NUMBERS = st.one_of(
    st.integers().map(str),
    st.floats().map(str),
    st.sampled_from(["", "0", "1", "²", "9" * 400, "0x10", "1e999", "-0", "nan", " 1 "]),
)
TEXTS = st.one_of(NUMBERS, st.text(max_size=12))
PLACES = [
    "HOROACC_RANK", "HOROACC_SIZE", "HOROACC_LOCAL_RANK", "HOROACC_LOCAL_SIZE", "RANK",
    "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
    "TORCHELASTIC_RUN_ID", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", "PMI_RANK", "PMI_SIZE",
    "MPI_LOCALNRANKS", "MPI_LOCALRANKID", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_NODEID",
    "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE", "SLURM_STEP_NUM_NODES", "JOB_COMPLETION_INDEX",
    "HOROACC_PODS", "PET_NODE_RANK", "PET_NNODES", "PET_NPROC_PER_NODE", "PET_MASTER_ADDR",
    "PET_MASTER_PORT",
]  # fmt: skip


@fuzzed(300, st.sampled_from(TABLE), TEXTS)
def test_settings(setting: Any, text: str) -> None:
    try:
        parse_given(setting, text, "--flag")
        if setting.env and "\0" not in text:
            core_settings({setting.env: text})
    except SettingError as error:
        named = ("--flag", setting.env, "stall_", setting.key)
        assert any(name in str(error) for name in named)


@fuzzed(
    300,
    st.dictionaries(st.sampled_from(PLACES), st.one_of(TEXTS, st.sampled_from("0123")), max_size=9),
)
def test_places(variables: dict[str, str]) -> None:
    try:
        place = environment.detect(variables)
    except PlacementError:
        return
    assert 0 <= place.rank < place.size and 0 <= place.local_rank < place.local_size


@fuzzed(
    300, st.lists(st.sampled_from([*"019:, x()#=\n\t", "2(x3)", "slots=", "host", "²", "\x85"]))
)
def test_hosts(words: list[str]) -> None:
    text = "".join(words)
    for read in (parse_hosts, _host_file):
        try:
            hosts = read(text)
        except HostsError:
            continue
        assert hosts and all(host.name and host.slots >= 1 for host in hosts)
    step = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"}
    with contextlib.suppress(PlacementError):
        environment.detect(step | {"SLURM_STEP_TASKS_PER_NODE": text})


@fuzzed(300, st.text("n0129[],-x()é\n ", max_size=16), st.text("0129(x),", max_size=12))
def test_allocations(nodes: str, tasks: str) -> None:
    given = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": nodes, "SLURM_JOB_CPUS_PER_NODE": tasks}
    with contextlib.suppress(HostsError):
        found = allocation(given)
        assert found is None or all(host.name and host.slots >= 1 for host in found.hosts)


def _host_file(text: str) -> Any:
    with tempfile.NamedTemporaryFile() as file:
        Path(file.name).write_text(text)
        return read_hostfile(file.name)


@fuzzed(300,
    st.one_of(
        st.binary(max_size=60),
        st.lists(
            st.sampled_from(
                ["network:\n", "params:\n", "  tcp_streams: ", "  fusion_threshold_mb: ", "4\n",
                 "'", '"', "#", "- ", "{", "\t", ":", "\n", "~", "nan\n", "\x0c", "1e400\n"]
            )
        ).map(lambda parts: "".join(parts).encode()),
    )
)  # fmt: skip
def test_configuration_files(data: bytes) -> None:
    with tempfile.NamedTemporaryFile() as file:
        Path(file.name).write_bytes(data)
        try:
            values = read_config(file.name, [])
        except ConfigFileError as error:
            assert file.name in str(error)
        else:
            assert set(values) <= {setting.key for setting in TABLE}


class _Launcher:
    """The supervisor of horoaccrun, as far as a shim's connection knows it."""

    def __init__(self) -> None:
        self.ranks: dict[int, Any] = {}
        self.ended: dict[int, int] = {}
        self.watched: dict[int, Any] = {}
        self.timers: list[Any] = []

    def watch(self, fd: int, ready: Any) -> None:
        self.watched[fd] = ready

    def unwatch(self, fd: int) -> None:
        del self.watched[fd]

    def add_rank(self, rank: int, pid: int, stdout: int, stderr: int) -> None:
        self.ranks[rank] = pid
        os.close(stdout)
        os.close(stderr)

    def rank_ended(self, rank: int, status: int) -> None:
        assert rank in self.ranks
        self.ended[rank] = status


def _listener() -> tuple[_Launcher, ShimListener, Any]:
    launcher = _Launcher()
    listener = ShimListener(launcher, SECRET, 2)  # type: ignore[arg-type]
    (ready,) = launcher.watched.values()
    return launcher, listener, ready


def _hello(challenge: bytes, secret: str = SECRET, **changed: Any) -> bytes:
    nonce = bytes(32)
    proof = shim.proof_of_shim(secret, challenge, nonce, 1, 4711)
    return (
        json.dumps(
            {"rank": 1, "pid": 4711, "nonce": nonce.hex(), "proof": proof} | changed
        ).encode()
        + b"\n"
    )


def _visit(words: Any, passes_pipes: bool = True) -> SimpleNamespace:
    """One connection, which sends the result of `words` for the challenge."""
    launcher, listener, accept = _listener()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.connect(f"\0{listener.name}")
        accept()
        link.settimeout(5)
        challenge = link.recv(32)
        text = words(challenge)
        pipes = [os.open(os.devnull, os.O_RDWR) for _ in range(2 * passes_pipes)]
        if text:
            socket.send_fds(link, [text], pipes)
        for fd in pipes:
            os.close(fd)
        link.shutdown(socket.SHUT_WR)
        for _ in range(8):  # until it has read the end
            for ready in list(launcher.watched.values())[1:]:
                ready()
        answer = link.recv(4096)
    assert len(launcher.watched) == 1  # nothing of the connection is left
    return SimpleNamespace(ranks=launcher.ranks, ended=launcher.ended, answer=answer)


def test_a_shim_and_horoaccrun_prove_themselves_to_each_other() -> None:
    challenges: list[bytes] = []
    seen = _visit(lambda challenge: challenges.append(challenge) or _hello(challenge))
    assert seen.ranks == {1: 4711}
    proof = shim.proof_of_horoaccrun(SECRET, challenges[0], bytes(32))
    assert seen.answer[1:] == proof.encode()
    assert seen.ended == {1: -9}  # it left without saying how its program ended


def test_a_peer_without_the_secret_is_no_rank() -> None:
    for words in (
        lambda challenge: _hello(challenge, "another secret"),
        lambda _: _hello(bytes(32)),
        lambda challenge: _hello(challenge, rank=0),
        lambda challenge: _hello(challenge, pid=1),
        lambda challenge: _hello(challenge, rank=7),
        lambda _: b'{"status": 0}\n',
        lambda _: b"x" * 5000,
    ):
        seen = _visit(words)
        assert (seen.ranks, seen.answer) == ({}, b"")
    assert _visit(_hello, passes_pipes=False).ranks == {}


@fuzzed(300, st.one_of(st.binary(max_size=80), st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5)),
    lambda inner: st.dictionaries(
        st.sampled_from(["rank", "pid", "nonce", "proof", "status"]), inner, max_size=5
    ),
    max_leaves=6,
).map(lambda value: json.dumps(value).encode() + b"\n")))  # fmt: skip
def test_any_bytes_at_the_shims_socket(text: bytes) -> None:
    assert _visit(lambda _: text).ranks == {}
