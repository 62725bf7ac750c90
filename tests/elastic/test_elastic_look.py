"""Looks at elastic jobs whose ranks come and go, and what whoever asks may cost."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from elastic_jobs import Elastic
from test_coordinator import Case
from test_top import ASKS_AS

from horoacc.launcher.elastic.membership import INFINITE
from horoacc.launcher.look.look_server import BUSY
from horoacc.monitor.door import ask

WAITS = (
    r"it has waited for ranks for \d+ s, and gives up in \d+ s \(--elastic-timeout\): "
    r"1 of at least 2 ranks are there; 127\.0\.0\.1 went; hosts: localhost:1"
)


@pytest.fixture
def running(elastic: Elastic) -> Iterator[Elastic]:
    """A job of two ranks on two hosts, whose folder of sockets is `look`."""
    elastic.hosts, elastic.batches, elastic.seconds = "localhost:1,127.0.0.1:1", 100_000, 0.02
    arguments = elastic.arguments("-np", "2", "--min-np", "2")
    look = {"HOROACC_LOOK_DIR": str(elastic.folder / "look")}
    process = elastic.job.start(*arguments, stdout=subprocess.DEVNULL, **look)
    elastic.job.wait_until(lambda: elastic.reached(3), "the start")
    yield elastic
    process.terminate()
    process.communicate(timeout=300)
    elastic.job.expect_nothing_left()
    left = [name for name in os.listdir(elastic.folder / "look") if not name[9:10].isdigit()]
    assert left == [], "sockets of the launcher or of agents"


def look(elastic: Elastic, *words: str) -> str:
    return elastic.job.run(*words, HOROACC_LOOK_DIR=str(elastic.folder / "look")).out


def sockets(elastic: Elastic, owner: str) -> list[Path]:
    return sorted((elastic.folder / "look").glob(f"*.{owner}.*"))


def ranks_told(place: Path) -> int:
    """How many ranks whoever asks there hears of."""
    return ask({0: str(place)}, 5.0, b"0 60 9999\n").get(0, b"").count(b'"format"')


def test_a_job_that_waits_for_hosts(running: Elastic, tmp_path: Path) -> None:
    with open(tmp_path / "shown", "wb") as shown:
        environ = running.job.environ(HOROACC_LOOK_DIR=str(tmp_path / "look"))
        top = subprocess.Popen(running.job.command("top"), stdout=shown, env=environ)
    try:
        said = tmp_path / "shown"
        running.job.wait_until(lambda: "2 ranks, 1 host" in said.read_text(), "the first picture")
        running.set_hosts("localhost:1")
        running.job.wait_until(lambda: bool(re.search(WAITS, said.read_text())), "the wait")
        assert re.match(rf"! job \w+: {WAITS}\n$", look(running, "top", "--once"))
        facts = json.loads(look(running, "top", "--json"))
        assert facts["ranks"] == [] and re.fullmatch(WAITS, facts["no_ranks"]), facts
        assert re.search(f"has no rank to look at: {WAITS}", look(running, "explain"))
        running.set_hosts("localhost:1,127.0.0.1:1")
        running.job.wait_until(
            lambda: "2 ranks, 1 host" in said.read_text()[-900:], "the last picture"
        )
        facts = json.loads(look(running, "top", "--json"))
        assert facts["no_ranks"] == "" and len(facts["ranks"]) == 2, facts
    finally:
        top.terminate()
        top.wait(300)


@pytest.mark.parametrize("owner", ["launcher", "agent"])
def test_whoever_asks_holds_nothing_up(running: Elastic, owner: str) -> None:
    place = sockets(running, owner)[0]
    assert place.stat().st_mode & 0o777 == 0o600
    with contextlib.ExitStack() as stack:
        links = []
        for number in range(40):
            link = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            link.connect(str(place))
            links.append(link)
            with contextlib.suppress(OSError):
                if number % 4 == 1:
                    link.sendall(b"9" * 100_000)  # a question without end
                elif number % 4 == 2:
                    link.sendall(b"0 60 20000\n")  # of one that does not read
                elif number % 4 == 3:
                    link.sendall(b"what?\n")
            if number % 10 == 0:
                running.job.wait_until(lambda: ranks_told(place) == 2, "an answer", 10)
        batch = running.steps()[-1]["batch"]
        running.job.wait_until(lambda: running.reached(batch + 10), "more steps", 10)
        for link in links[::4]:  # which said nothing
            link.settimeout(5)
            assert link.recv(1) == b""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can ask as another user")
@pytest.mark.parametrize("owner", ["launcher", "agent"])
def test_others_get_no_answer(running: Elastic, owner: str) -> None:
    place = sockets(running, owner)[0]
    place.parent.chmod(0o711)  # as for a process that got in somehow
    place.chmod(0o666)
    answers = [
        subprocess.run(
            [sys.executable, "-c", ASKS_AS, str(user), str(place.parent), place.name],
            capture_output=True, text=True, timeout=300, check=True,
        ).stdout
        for user in (0, 65534)
    ]  # fmt: skip
    assert answers == ["ANSWER\n", "NOTHING\n"]


def test_agents_tell_why_a_rank_is_silent(running: Elastic) -> None:
    pid = int(sockets(running, "1")[0].name.split(".")[2])
    os.kill(pid, signal.SIGSTOP)
    try:
        told = ask({0: str(sockets(running, "launcher")[0])}, 5.0, b"0 10 9\n")[0]
    finally:
        os.kill(pid, signal.SIGCONT)
    assert told.count(b'"format"') == 1
    silent = {"1": f"does not answer: process {pid} is stopped"}
    assert json.loads(told[told.rindex(b"\n") :]) == {"silent": silent}


class Asked:
    def __init__(self) -> None:
        self.text, self.over = b"", False

    def give(self, part: bytes) -> None:
        self.text += part

    def end(self) -> None:
        self.over = True


@pytest.fixture
def seated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Case:
    """A coordinator with a rank on each of the hosts a and b."""
    case = Case(monkeypatch, tmp_path)
    case.hosts("a:1,b:1")
    for worker in case.members.live():
        case.ready(worker)
    assert case.members.epoch is not None
    return case


def sent(case: Case, host: str, kind: str) -> list[Any]:
    return [message for message in case.agents[host].sent if message["kind"] == kind]


def told(case: Case, host: str, look: int, body: bytes = b"", **more: Any) -> None:
    channel: Any = case.agents[host]
    case.coordinator.looks.take(channel, {"kind": "told", "look": look, "body": body} | more)


def words(text: bytes) -> Any:
    """What is said beside the ranks' answers, at the end."""
    return json.loads(text[text.index(b"{") :])


def test_an_agent_that_does_not_answer_is_asked_once(seated: Case) -> None:
    looks, replies = seated.coordinator.looks, [Asked(), Asked(), Asked()]
    for reply in replies[:2]:
        looks.ask(b"0 10 100", reply)
    assert [one["ranks"] for one in sent(seated, "a", "ask")] == [[0]]
    told(seated, "a", 1, b"of a")
    told(seated, "a", 1)
    assert [one["look"] for one in sent(seated, "a", "ask")] == [1, 2]
    assert (replies[0].text, replies[0].over) == (b"of a", False)
    looks.on_time(time.monotonic() + 10)
    assert (replies[0].text, replies[0].over) == (b"of a", True)
    assert replies[1].over and b"none of its 2 ranks answers; hosts: a:1, b:1" in replies[1].text
    looks.ask(b"0 10 100", replies[2])
    assert len(sent(seated, "a", "ask")) == 2 and len(sent(seated, "b", "ask")) == 1
    for host, look in (("a", 2), ("b", 1)):  # late, but here
        told(seated, host, look)
    for host in "ab":
        assert sent(seated, host, "ask")[-1]["look"] == 3
        told(seated, host, 3, host.encode())
        told(seated, host, 3)
    assert (replies[2].text, replies[2].over) == (b"ab", True)


def test_what_an_agent_hands_on_comes_in_parts(seated: Case) -> None:
    channel: Any = seated.agents["a"]
    looks = seated.coordinator.looks
    looks.take(channel, {"kind": "look", "look": 7, "question": "0 10 100"})
    told(seated, "b", 1, b"x" * 100_000)
    for host in "ab":
        told(seated, host, 1)
    for count in (1, 2, 3):
        answers = sent(seated, "a", "answer")
        assert len(answers) == count
        looks.take(channel, {"kind": "taken", "look": 7})
    assert b"".join(one["body"] for one in answers) == b"x" * 100_000
    assert [(one["look"], one["end"]) for one in answers] == [(7, False), (7, False), (7, True)]
    looks.ask(b"what?", reply := Asked())
    assert (reply.text, reply.over) == (b"", True)


def test_what_agents_tell_comes_in_parts(seated: Case) -> None:
    """Parts of two agents' answers come in turns, and one is missing at the end."""
    looks = seated.coordinator.looks
    looks.ask(b"0 10 100", reply := Asked())
    for host, body, more in (("a", b"a1", True), ("b", b"b1", True), ("a", b"a2", False)):
        told(seated, host, 1, body, more=more)
        assert sent(seated, host, "more")[-1] == {"kind": "more", "look": 1, "wanted": True}
    assert reply.text == b"a1a2"
    told(seated, "a", 1)
    looks.on_time(time.monotonic() + 10)
    assert (reply.text, reply.over) == (b"a1a2", True)
    told(seated, "b", 1, b"b2")
    assert not sent(seated, "b", "more")[-1]["wanted"]


@pytest.mark.parametrize(
    ("asked", "used"), [(b"20000", "20000"), (b"1000000", "26214"), (b"-5", "0")]
)
def test_how_many_events_ranks_tell(seated: Case, asked: bytes, used: str) -> None:
    seated.coordinator.looks.ask(b"0 10 " + asked, reply := Asked())
    assert sent(seated, "a", "ask")[0]["question"] == f"0 10.0 {used}"
    for host in "ab":
        told(seated, host, 1, b"1 1\nx")
        told(seated, host, 1)
    expected = b'{"events": 26214}' if asked == b"1000000" else b"x"
    assert reply.over and reply.text.endswith(expected)


def test_why_there_is_no_answer(seated: Case) -> None:
    looks, agent = seated.coordinator.looks, seated.agents["a"]
    looks.ask(b"0 10 100", reply := Asked())
    stopped = "does not answer: process 7 is stopped"
    told(seated, "a", 1, silent={"0": stopped})
    told(seated, "b", 1)
    why = f"none of its 2 ranks answers; hosts: a:1, b:1; rank 0 {stopped}"
    assert words(reply.text) == {"no_ranks": why, "silent": {"0": stopped}}
    replies = [Asked() for _ in range(17)]
    for one in replies:
        looks.ask(b"0 10 100", one)
    assert [one.over for one in replies] == [False] * 16 + [True]
    assert words(replies[-1].text) == BUSY
    for number in range(17):
        looks.take(agent, {"kind": "look", "look": number, "question": "0 10 100"})  # type: ignore[arg-type]
    assert words(sent(seated, "a", "answer")[-1]["body"]) == BUSY
    looks.on_time(time.monotonic() + 20)
    seated.coordinator.signal_all(15)
    looks.ask(b"0 10 100", reply := Asked())
    assert seated.coordinator.on_time(seated.now) < INFINITE
    looks.on_time(time.monotonic() + 20)
    assert words(reply.text) == {"no_ranks": "the job is ending"}
