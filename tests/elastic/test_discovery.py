"""Discovery of hosts by a program, and by `horoaccrun` that runs a script again and again."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from elastic_jobs import Elastic

import horoacc
from horoacc.elastic import FixedHosts, HostDiscovery, HostDiscoveryScript


@pytest.mark.parametrize(
    ("script", "slots", "expected"),
    [
        ("printf 'a:2\\nb\\n\\n c:1 \\n'", 3, {"a": 2, "b": 3, "c": 1}),
        ("printf 'a:2\\na:1\\n'", None, {"a": 3}),
        ("true", 1, {}),
    ],
)
def test_a_scripts_hosts(script: str, slots: int | None, expected: dict[str, int]) -> None:
    found = HostDiscoveryScript(script, slots).find_available_hosts_and_slots()
    assert list(found.items()) == list(expected.items())


@pytest.mark.parametrize(
    ("script", "error", "words"),
    [
        ("echo broken >&2; exit 3", RuntimeError, "ended with code 3: broken"),
        ("echo a", ValueError, "'a' is not host:slots"),
        ("echo a:x", ValueError, "'a:x' is not host:slots"),
    ],
)
def test_a_script_that_fails(script: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        HostDiscoveryScript(script).find_available_hosts_and_slots()


def test_fixed_hosts_change_when_they_are_set() -> None:
    hosts = FixedHosts({"a": 1})
    found = hosts.find_available_hosts_and_slots()
    hosts.set({"b": 2})
    assert found == {"a": 1} and hosts.find_available_hosts_and_slots() == {"b": 2}


def test_a_function_gets_the_hosts_that_an_object_finds(tmp_path: Path) -> None:
    """Those that it finds later, too: ranks are added once another thread has set them."""
    hosts = FixedHosts({"localhost": 1})
    begun = tmp_path / "begun"

    def train(begun: str) -> list[int]:
        import pathlib
        import time

        import horoacc as hvd

        sizes = []

        @hvd.elastic.run
        def grows(state: Any) -> None:
            sizes.append(hvd.size())
            pathlib.Path(begun).touch()
            while hvd.size() < 3:
                time.sleep(0.02)
                state.commit()

        hvd.init()
        grows(hvd.elastic.ObjectState())
        return sizes

    def grow() -> None:
        deadline = time.monotonic() + 60
        while not begun.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        hosts.set({"localhost": 1, "127.0.0.1": 2})

    setter = threading.Thread(target=grow)
    setter.start()
    found = horoacc.run(
        train, (str(begun),), num_proc=1, min_num_proc=1, max_num_proc=3, host_discovery=hosts
    )
    setter.join()
    assert found[0][0] == 1 and [sizes[-1] for sizes in found] == [3, 3, 3]


class _Failing(HostDiscovery):
    def __init__(self) -> None:
        self.calls = 0

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        self.calls += 1
        if self.calls > 1:
            raise OSError("nobody answers")
        return {"localhost": 1}


def test_an_object_that_finds_no_hosts(capfd: pytest.CaptureFixture[str]) -> None:
    def lasts(seconds: float) -> int:
        import time

        import horoacc as hvd

        hvd.init()
        hvd.elastic.run(lambda state: time.sleep(seconds))(hvd.elastic.ObjectState())
        return hvd.size()

    for wrong, words in [
        ({"192.0.2.7": 1}, "192.0.2.7 is another"),
        ({"localhost": -1}, "not host:slots"),
    ]:
        with pytest.raises(ValueError, match=words):
            horoacc.run(lasts, (0.0,), host_discovery=FixedHosts(wrong))
    with pytest.raises(ValueError, match="cannot both be given"):
        horoacc.run(lasts, (0.0,), host_discovery=FixedHosts({}), host_discovery_script="true")
    assert horoacc.run(lasts, (3.0,), host_discovery=_Failing()) == [1]
    said = capfd.readouterr().err
    assert said.count("OSError: nobody answers; the hosts stay as they were") == 1


def test_a_script_that_fails_for_a_while_changes_nothing(elastic: Elastic) -> None:
    elastic.hosts, elastic.batches, elastic.seconds = "localhost:2", 70, 0.05
    process = elastic.job.start(*elastic.arguments("-np", "2", "--min-np", "1"))
    elastic.job.wait_until(lambda: elastic.reached(3), "the start")
    elastic.set_hosts("no host: at all")
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert elastic.check() == [2]
    told = err.decode()
    assert told.count("the hosts stay as they were") == 1 and "printed 'no host: at all'" in told
    elastic.job.expect_nothing_left()
