"""The coordinator without processes: its connections are fake, and the clock is the test's."""

from __future__ import annotations

import errno
import hmac
from types import SimpleNamespace
from typing import Any

import pytest

from horoacc.launcher.elastic import agents, coordinator
from horoacc.launcher.elastic.channel import ChannelError
from horoacc.launcher.elastic.coordinator import Coordinator
from horoacc.launcher.elastic.deadlines import Deadlines
from horoacc.launcher.elastic.history import History, story
from horoacc.launcher.elastic.membership import INFINITE, Limits, Membership, Phase, Worker
from horoacc.launcher.hosts import Host


class FakeChannel:
    def __init__(self, *messages: Any) -> None:
        self.sent: list[Any] = []
        self.inbox = list(messages)
        self.closed = False

    def send(self, message: Any) -> None:
        self.sent.append(message)

    def receive(self) -> list[Any]:
        return [self.inbox.pop(0)]

    def fileno(self) -> int:
        return -1 if self.closed else 3

    def close(self) -> None:
        self.closed = True

    def kinds(self) -> list[str]:
        return [message["kind"] for message in self.sent]


class Case:
    """A coordinator at time 0, its hosts' agents and its workers' connections."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Any, **limits: Any) -> None:
        self.now = 1000.0
        clock = SimpleNamespace(monotonic=lambda: self.now)
        monkeypatch.setattr(coordinator, "time", clock)
        monkeypatch.setattr(agents, "time", clock)
        self.said: list[str] = []
        self.folder = folder
        loop: Any = SimpleNamespace(
            watch=lambda *_: None, unwatch=lambda *_: None,
            stream=lambda *_: SimpleNamespace(rank=-1, tail=(), feed=lambda data: None),
        )  # fmt: skip
        engine: Any = SimpleNamespace(
            start_agent=lambda *_: None, stop=lambda host: None, end=lambda: None
        )
        self.members = Membership(Limits(**{"least": 1, "most": INFINITE} | limits))
        self.coordinator = Coordinator(
            loop, SimpleNamespace(say=self.said.append), self.members, engine, ["program"], "00",  # type: ignore[arg-type]
            Deadlines(shortage=2.0, start=50.0, hang=10.0), History(str(folder)), lambda: None,
        )  # fmt: skip
        self.channels: dict[int, FakeChannel] = {}
        self.agents: dict[str, FakeChannel] = {}

    def hosts(self, text: str) -> None:
        found = [each.split(":") for each in text.split(",")]
        self.members.set_hosts([Host(name, int(slots)) for name, slots in found])
        self.coordinator.look()
        self.connect()

    def connect(self) -> None:
        """Agents and workers that were asked for come."""
        for worker in self.members.live():
            if worker.host not in self.agents:
                self.agents[worker.host] = FakeChannel()
                number = self.coordinator.agents._agents[worker.host].number
                hello = {"kind": "agent", "host": worker.host, "number": number}
                self.coordinator._greet(self.agents[worker.host], hello, [])  # type: ignore[arg-type]
            if worker.number not in self.channels:
                self.channels[worker.number] = FakeChannel()
                self.say(worker, {"kind": "worker", "worker": worker.number}, greet=True)

    def say(self, worker: Worker, *messages: Any, greet: bool = False) -> None:
        channel: Any = self.channels[worker.number]
        if greet:
            self.coordinator._greet(channel, messages[0], list(messages[1:]))
        for message in () if greet else messages:
            self.coordinator._take(worker, message)
            self.coordinator._settle()

    def ready(self, worker: Worker, beside: bool = False, **more: Any) -> None:
        self.say(worker, {"kind": "ready", "address": "h:1", "master_port": 1, "beside": beside,
                          "report": {}, "sets": [], "culprit": None, "why": ""} | more)  # fmt: skip

    def pass_time(self, seconds: float) -> int:
        """Lets the loop run. Returns how often it woke."""
        until, turns = self.now + seconds, 0
        while self.now < until:
            due = self.coordinator.on_time(self.now)
            turns += 1
            assert turns < 200, f"it is always due: {self.said[-3:]}"
            self.now = min(until, max(due, self.now + 0.01))
        self.coordinator.on_time(self.now)
        return turns


@pytest.fixture
def case(monkeypatch: pytest.MonkeyPatch, tmp_path: Any, request: pytest.FixtureRequest) -> Case:
    return Case(monkeypatch, tmp_path, **getattr(request, "param", {}))


@pytest.mark.parametrize("case", [{"failures_per_host": 1}], indirect=True)
def test_a_rank_dies_before_it_has_answered(case: Case) -> None:
    """The others wait for its answer in their checks, and need not any more."""
    case.hosts("a:2,b:1")
    first = case.members.live()
    for worker in first:
        case.ready(worker)
    case.hosts("a:2,b:1,c:1")
    newcomer = case.members.live()[-1]
    case.ready(newcomer, beside=True)
    case.ready(newcomer)
    question = case.channels[0].sent[-1]["question"]
    for worker in first[:2]:
        case.say(worker, {"kind": "checks", "question": question, "count": 7})
    assert case.channels[0].sent[-1]["kind"] == "question"
    case.coordinator.agents.lose_host("b", "it vanished")
    verdict = case.channels[0].sent[-1]
    assert verdict["kind"] == "verdict" and verdict["at"] == 8
    case.pass_time(60)
    assert not [text for text in case.said if "does not answer" in text]


def test_a_rank_that_does_not_answer_is_killed_once(case: Case) -> None:
    case.hosts("a:2")
    for worker in case.members.live():
        case.ready(worker)
    case.hosts("a:3")
    newcomer = case.members.live()[-1]
    case.ready(newcomer, beside=True)
    case.ready(newcomer)
    case.say(case.members.workers[0], {"kind": "checks", "question": 1, "count": 7})
    case.pass_time(14)
    assert case.said.count("a rank does not answer: it is killed") == 1
    assert case.agents["a"].sent[-1] == {"kind": "signal", "worker": 1, "number": 9}


@pytest.mark.parametrize("case", [{"least": 2, "cooldown": (0.2, 0.4)}], indirect=True)
def test_processes_that_die_at_once_are_no_ranks(case: Case) -> None:
    """A host that is never left out for good: only the time-out ends the job."""
    case.hosts("a:1,b:1")
    for worker in case.members.live():
        case.ready(worker)
    case.coordinator.worker_ended(1, -9)
    case.ready(case.members.workers[0])
    for _ in range(100):
        case.pass_time(0.1)
        for worker in case.members.live():
            if worker.phase is Phase.STARTING:
                case.coordinator.worker_ended(worker.number, 1)
    assert "for 2 s the job has not had the ranks that it needs" in case.coordinator.error


def test_a_seat_tells_no_secret(case: Case) -> None:
    """Its message is not encrypted: the member makes the epoch's secret of its number."""
    case.hosts("a:1")
    case.ready(case.members.workers[0])
    (seat,) = case.channels[0].sent
    own = hmac.digest(b"00", f"epoch {seat['salt']}".encode(), "sha256").hex()
    assert len(seat["salt"]) == 64 and own not in str(seat) and "secret" not in seat


def test_newcomers_wait_for_others_for_a_while_only(case: Case) -> None:
    """One of two newcomers hangs before `init`: the other comes in, and it is killed."""
    case.hosts("a:1")
    case.ready(case.members.workers[0])
    case.hosts("a:1,b:1,c:1")
    one, two = case.members.live()[1:]
    case.ready(one, beside=True)
    case.ready(one)
    assert case.channels[0].kinds() == ["seat"]
    case.pass_time(31)
    assert case.channels[0].kinds() == ["seat", "question"]
    case.pass_time(20)
    assert "a process on c has not come to init(): it is killed" in case.said
    assert {"kind": "signal", "worker": two.number, "number": 9} in case.agents["c"].sent


def test_a_rank_that_is_named_later_is_suspected_at_once(case: Case) -> None:
    case.hosts("a:3")
    for worker in case.members.live():
        case.ready(worker)
    case.ready(case.members.workers[0])  # an error that names nobody
    case.ready(case.members.workers[1], culprit=2)
    case.pass_time(4)
    assert any("rank 2 does not come back" in text for text in case.said)


def test_an_agent_of_a_host_that_is_left_may_end(case: Case) -> None:
    case.hosts("a:1,b:1")
    first = case.members.live()
    for worker in first:
        case.ready(worker)
    case.coordinator.agents._owner.host_drains("b")
    case.coordinator._settle()
    for worker in first:
        case.say(worker, {"kind": "checks", "question": 1, "count": 7})
        case.ready(worker)
    assert case.channels[1].kinds()[-1] == "leave"
    agent = next(iter(case.coordinator.agents._agents.values()))
    assert agent.host == "a" and "finish" not in case.agents["b"].kinds()
    b = case.coordinator.agents._agents["b"]
    for stream in ("stdout", "stderr"):
        output = {"kind": "output", "worker": 1, "stream": stream, "body": b""}
        case.coordinator.agents._take(b, output)
    case.coordinator.agents._take(b, {"kind": "ended", "worker": 1, "status": 0})
    assert case.agents["b"].kinds()[-1] == "finish" and case.agents["b"].closed
    case.coordinator.close()
    told = "\n".join(story(case.folder / "elastic.jsonl"))
    assert "Rank 1 on b left: its host is asked to end." in told


@pytest.mark.parametrize(
    "message", [{"kind": "nothing"}, {}, {"kind": "ready", "beside": False}, {"kind": "checks"}]
)
@pytest.mark.parametrize("with_hello", [True, False])
def test_a_peer_that_says_something_else_loses_its_connection_only(
    case: Case, message: Any, with_hello: bool
) -> None:
    case.hosts("a:1")
    case.members.set_hosts([Host("a", 2)])
    case.coordinator._settle()
    channel: Any = FakeChannel(message)
    hello = {"kind": "worker", "worker": 1}
    case.coordinator._greet(channel, hello, [message] if with_hello else [])
    if not with_hello:
        worker = case.members.workers[1]
        take = lambda told: case.coordinator._take(worker, told)  # noqa: E731
        case.coordinator._hear(channel, hello, take, channel.receive)
    assert channel.closed
    assert {"kind": "signal", "worker": 1, "number": 9} in case.agents["a"].sent
    assert not case.coordinator.error


def test_a_host_whose_kernel_does_not_answer_a_worker_is_lost(case: Case) -> None:
    """A message to its agent would begin the silence anew."""
    case.hosts("a:1,b:1")
    for worker in case.members.live():
        case.ready(worker)

    def receive() -> list[Any]:
        raise ChannelError(errno.ETIMEDOUT, "timed out")

    channel: Any = case.channels[1]
    case.coordinator._hear(channel, {"kind": "worker", "worker": 1}, lambda message: None, receive)
    assert case.members.workers[1].phase is Phase.GONE
    assert any("host b is lost" in text for text in case.said)
