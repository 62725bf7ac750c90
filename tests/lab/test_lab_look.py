"""`top`, `explain` and metrics of jobs on several hosts: a link that gets slow, a resize, and looks
from hosts that have no rank.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from elastic_jobs import Elastic
from holdups import Holdups
from lab_jobs import MODES, ROOT
from launcher_jobs import Job
from terminal import Terminal

from benchmarks.lab import Laboratory, Network, missing

LOOKED_AT = str(ROOT / "tests" / "launcher" / "looked_at.py")
SHOWN_SECONDS = 1.0
PORT = 9100
SLOW = "qdisc add dev eth0 root tbf rate 20mbit burst 32k limit 1m"


@pytest.fixture
def lab() -> Iterator[Laboratory]:
    if reason := missing():
        pytest.skip(reason)
    with Laboratory(Network()) as made:
        yield made


def start(
    lab: Laboratory, job: Job, *words: str, mode: str = "tcp over openmpi", **variables: str
) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "horoacc.launcher.main", *MODES[mode], *words]
    return lab.hosts["h1"].popen(
        command, env=job.environ(PYTHONPATH=str(ROOT), **variables),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def terminal(lab: Laboratory, job: Job, folder: Path, look: Path) -> Terminal:
    environ = job.environ(PYTHONPATH=str(ROOT), HOROACC_LOOK_DIR=str(look))
    return Terminal(folder, environ, lab.hosts["h1"].command([]))


@pytest.fixture
def login(tmp_path: Path) -> Iterator[Laboratory]:
    """Three hosts, each with a folder of its own for sockets, at one path."""
    if reason := missing():
        pytest.skip(reason)
    (tmp_path / "look").mkdir()
    with Laboratory(Network(hosts=3)) as made:
        for host in made.hosts.values():
            host.run(["mount", "-t", "tmpfs", "-o", "mode=700", "none", str(tmp_path / "look")])
        yield made


def seen(
    lab: Laboratory, job: Job, look: Path, *words: str, at: str = "h1", lab_known: bool = True
) -> str:
    """What horoaccrun says there."""
    command = [sys.executable, "-m", "horoacc.launcher.main", *words]
    environ = job.environ(PYTHONPATH=str(ROOT), HOROACC_LOOK_DIR=str(look))
    hidden = [] if lab_known else ["env", "HOROACC_LAB="]
    done = lab.hosts[at].run(
        [*hidden, *command], env=environ, capture_output=True, text=True, check=False, timeout=300
    )
    return str(done.stdout + done.stderr)


def hosts_seen(lab: Laboratory, job: Job, look: Path, at: str = "h1") -> list[str]:
    """The host of each rank; [] if none is seen."""
    told = seen(lab, job, look, "top", "--json", at=at)
    return [row.get("host", "") for row in json.loads(told)["ranks"]] if told[:1] == "{" else []


def end(ranks: subprocess.Popen[bytes]) -> None:
    ranks.terminate()
    ranks.wait(300)


SCRAPE = f"""
import urllib.request
print(urllib.request.urlopen("http://127.0.0.1:{PORT}/metrics", timeout=20).read().decode())
"""


def scrape(lab: Laboratory) -> dict[str, float]:
    """Numbers of h1, and the time."""
    done = lab.hosts["h1"].run([sys.executable, "-c", SCRAPE], capture_output=True, text=True)
    wanted = r"^(horoacc_(?:job|waited\w+|copied\w+(?=.*memory)))\S* (\S+)$"
    found = re.findall(wanted, done.stdout, re.MULTILINE)
    return {"time": time.monotonic(), **{name: float(number) for name, number in found}}


def rates(lab: Laboratory) -> dict[str, float]:
    """What h1's numbers grow by in a second."""
    before = scrape(lab)
    time.sleep(1.5)
    after = scrape(lab)
    return {n: (after[n] - before[n]) / (after["time"] - before["time"]) for n in after}


def test_a_link_that_gets_slow(lab: Laboratory, tmp_path: Path) -> None:
    folders = tmp_path / "hosts"
    folders.mkdir()
    job = Job()
    with contextlib.ExitStack() as stack:
        stack.callback(job.expect_nothing_left)
        shown = stack.enter_context(contextlib.closing(terminal(lab, job, tmp_path, folders / "0")))
        words = [LOOKED_AT, "idle", str(tmp_path / "now"), str(tmp_path / "moment")]
        flags = ["-H", "h1:1,h2:1", "-np", "2", "--metrics-port", str(PORT), sys.executable]
        ranks = start(lab, job, *flags, *words, LOOK_DIRS=str(folders))
        stack.callback(end, ranks)
        job.wait_until((folders / "1").exists, "the ranks' start")
        shown.run("top")
        healthy = shown.wait_for(r"2 ranks, 2 hosts, [\d.]+ steps/s")
        assert "links between hosts" not in healthy, healthy
        quick = rates(lab)
        with Holdups() as holdups:
            lab.hosts["h1"].run(["tc", *SLOW.split()])
            begin = time.monotonic()
            shown.wait_for(r"links between hosts: all ranks wait \d\d% of the time")
            assert time.monotonic() - begin < holdups.allow(SHOWN_SECONDS)
        slow = rates(lab)
        shown.run("explain")
        said = shown.wait_for("ENDS").replace("\n", " ")
        assert re.search(r"Link: .* all ranks wait for reductions, [\d.]+ GB", said), said
    copied, waited = "horoacc_copied_bytes_total", "horoacc_waited_seconds_total"
    assert slow[copied] < quick[copied] / 2, (quick, slow)
    assert slow[waited] > max(0.5, quick[waited]), (quick, slow)


def test_a_resize(lab: Laboratory, tmp_path: Path) -> None:
    elastic = Elastic(Job(), tmp_path, batches=100_000, seconds=0.02, hosts="h1:2,h2:2")
    look = tmp_path / "look"
    with contextlib.ExitStack() as stack:
        stack.callback(elastic.job.expect_nothing_left)
        shown = stack.enter_context(contextlib.closing(terminal(lab, elastic.job, tmp_path, look)))
        flags = ("-np", "4", "--min-np", "2", "--metrics-port", str(PORT))
        ranks = start(lab, elastic.job, *elastic.arguments(*flags), HOROACC_LOOK_DIR=str(look))
        stack.callback(end, ranks)
        elastic.job.wait_until(lambda: elastic.reached(5), "the start")
        shown.run("top")
        shown.wait_for(r": 4 ranks, 2 hosts, [\d.]+ steps/s")
        for hosts, size in (("h1:2,h2:1", 3), ("h1:2,h2:2", 4)):
            since = time.time()
            with Holdups() as holdups:
                elastic.set_hosts(hosts)
                shown.wait_for(rf": {size} ranks, 2 hosts, [\d.]+ steps/s")
                seen = time.time()
            new = [s for s in elastic.steps() if s["time"] > since and s["size"] == size]
            assert seen - new[0]["time"] < holdups.allow(SHOWN_SECONDS)
            assert scrape(lab)["horoacc_job"] == size
            shown.run("explain")
            assert "The critical path of each step" in shown.wait_for("ENDS")
            shown.run("top")


@pytest.mark.parametrize("mode", ["openmpi", "mpich"])
def test_the_launchers_host_has_no_rank(login: Laboratory, tmp_path: Path, mode: str) -> None:
    if not Path(MODES[mode][-1]).exists():
        pytest.skip(f"{mode}: this mpirun is not installed")
    job, look = Job(), tmp_path / "look"
    words = [LOOKED_AT, "idle", str(tmp_path / "now"), str(tmp_path / "moment")]
    with contextlib.ExitStack() as stack:
        stack.callback(job.expect_nothing_left)
        flags = ["-H", "h2:1,h3:1", "-np", "2", sys.executable]
        ranks = start(login, job, *flags, *words, mode=mode, HOROACC_LOOK_DIR=str(look))
        stack.callback(end, ranks)
        job.wait_until(lambda: hosts_seen(login, job, look) == ["h2", "h3"], "the ranks' start")
        assert hosts_seen(login, job, look, at="h3") == ["h2", "h3"]
        assert "The critical path of each step" in seen(login, job, look, "explain")
        told = seen(login, job, look, "top", "--once", lab_known=False)
        why = "h2 cannot be reached by enter: enter: there is no host 'h2' in this laboratory"
        assert f": its ranks are on other hosts, and {why}" in told, told
        assert "`horoaccrun doctor -H h2,h3` says more" in told, told
    assert seen(login, job, look, "top").startswith("horoaccrun top: no job of this user")


def test_an_elastic_job_on_other_hosts_waits(login: Laboratory, tmp_path: Path) -> None:
    """What it waits for is told on the launcher's host, and on one with an agent and no rank."""
    elastic = Elastic(Job(), tmp_path, batches=100_000, seconds=0.02, hosts="h2:1,h3:1")
    job, look = elastic.job, tmp_path / "look"
    with contextlib.ExitStack() as stack:
        stack.callback(job.expect_nothing_left)
        shown = stack.enter_context(contextlib.closing(terminal(login, job, tmp_path, look)))
        flags = ("-np", "2", "--min-np", "2")
        ranks = start(login, job, *elastic.arguments(*flags), HOROACC_LOOK_DIR=str(look))
        stack.callback(end, ranks)
        job.wait_until(lambda: hosts_seen(login, job, look) == ["h2", "h3"], "the ranks' start")
        shown.run("top")
        shown.wait_for(r": 2 ranks, 2 hosts, [\d.]+ steps/s")
        elastic.set_hosts("h2:1")
        waits = r"waited for ranks .* 1 of at least 2 ranks are there; h3 went; hosts: h2:1"
        shown.wait_for(waits)
        for at in ("h1", "h2"):
            told = seen(login, job, look, "explain", at=at)
            assert re.search(waits, told), told
        elastic.set_hosts("h2:1,h3:1")
        shown.wait_for(r": 2 ranks, 2 hosts, [\d.]+ steps/s")
        assert hosts_seen(login, job, look) == ["h2", "h3"]
