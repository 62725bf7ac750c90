"""Discovery of hosts by a program, and by `horoaccrun` that runs a script again and again."""

from __future__ import annotations

import pytest
from elastic_jobs import Elastic

from horoacc.elastic import FixedHosts, HostDiscoveryScript


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


def test_a_script_that_fails_for_a_while_changes_nothing(elastic: Elastic) -> None:
    elastic.hosts, elastic.batches, elastic.seconds = "localhost:2", 70, 0.05
    process = elastic.job.start(*elastic.arguments("-np", "2", "--min-np", "1"))
    elastic.job.wait_until(lambda: elastic.reached(3), "the start")
    elastic.set_hosts("no host: at all")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert elastic.check() == [2]
    told = err.decode()
    assert told.count("the hosts stay as they were") == 1 and "printed 'no host: at all'" in told
    elastic.job.expect_nothing_left()
