"""`hvd.metrics()`, and what Prometheus reads of a job, by its own parser."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from launcher_jobs import MODES, ROOT, Job
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from horoacc.monitor.families import FAMILIES, samples

PROGRAM = """
import json, os, signal, sys, time, urllib.request
import numpy as np, horoacc as hvd

port, stopped = int(sys.argv[1]), sys.argv[2:] == ["stopped"]
path = os.environ.get("HOROACC_METRICS_FILE")
hvd.init()
for _ in range(5):
    hvd.allreduce(np.ones(1 << 16, np.float32), name="x")
pids = hvd.allgather(np.array([os.getpid()]))
if hvd.rank() == 0 and port:
    if stopped:
        os.kill(pids[1], signal.SIGSTOP)
    accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
    ask = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers=accept)
    with urllib.request.urlopen(ask, timeout=20) as answer:
        print("SCRAPE" + json.dumps(answer.read().decode()))
    if stopped:
        os.kill(pids[1], signal.SIGCONT)
    sockets = [line.split() for line in open("/proc/net/tcp")]
    listen = [s[1] for s in sockets if s[3] == "0A" and s[1].endswith(f":{port:04X}")]
    print("LISTENS" + json.dumps(listen))
if hvd.rank() == 0 and path:
    while f'{{rank="{hvd.size() - 1}"' not in (text := open(path).read()):
        time.sleep(0.01)
    print("FILE" + json.dumps(text))
hvd.barrier()
print("OWN" + json.dumps(hvd.metrics()))
hvd.barrier()
hvd.shutdown()
"""

WAITS = """
if hvd.rank() == 0:
    sys.stdin.readline()
"""
WORKS = """
import pathlib, sys
import numpy as np, horoacc as hvd

hvd.init()
while not hvd.allreduce(np.array([pathlib.Path(sys.argv[1]).exists()]), op=hvd.Max)[0]:
    pass
hvd.shutdown()
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def told(lines: list[str], word: str) -> Any:
    (line,) = (line for line in lines if line.startswith(word))
    return json.loads(line[len(word) :])


@pytest.mark.parametrize("mode", MODES)
def test_a_scrape_has_all_ranks_of_the_host(mode: str, tmp_path: Path) -> None:
    port, path = free_port(), tmp_path / "horoacc.prom"
    flags = ("--metrics-port", str(port), "--metrics-file", str(path), "--metrics-seconds", "0.1")
    with Job() as job:
        result = job.run("-np", "3", *MODES[mode], *flags, "python", "-c", PROGRAM, str(port))
    assert told(result.of(0), "LISTENS") == [f"0100007F:{port:04X}"]
    text = told(result.of(0), "SCRAPE")
    found = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation and re.fullmatch("horoacc_[a-z_]+", family.name)
        for sample in family.samples:
            found[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
    for rank in range(3):
        assert found["horoacc_rank_up", (("local_rank", str(rank)),)] == 1
        own = told(result.of(rank), "OWN")
        for name in ("horoacc_submissions_total", "horoacc_buckets_total"):
            # The scrape comes before.
            assert 5 <= found[name, (("rank", str(rank)),)] <= own[name]
    (job_labels,) = (dict(labels) for name, labels in found if name == "horoacc_job")
    assert job_labels["hosts"] == "1"
    assert 'horoacc_submissions_total{rank="2"}' in told(result.of(0), "FILE")
    assert not list(tmp_path.iterdir())


def test_a_rank_that_does_not_answer_is_down() -> None:
    port = str(free_port())
    with Job() as job:
        words = ("python", "-c", PROGRAM, port, "stopped")
        result = job.run("-np", "2", "--metrics-port", port, *words)
    lines = told(result.of(0), "SCRAPE").splitlines()
    assert 'horoacc_rank_up{local_rank="0"} 1.0' in lines
    assert 'horoacc_rank_up{local_rank="1"} 0.0' in lines
    assert not [line for line in lines if '{rank="1"' in line or ',rank="1"' in line]


def test_strangers_take_few_threads() -> None:
    port = free_port()
    with Job() as job, contextlib.ExitStack() as stack:
        words = ("python", "-c", PROGRAM.replace("pids =", WAITS + "pids ="), str(port))
        ranks = job.start("-np", "2", "--metrics-port", str(port), *words, stdin=subprocess.PIPE)
        silent: list[socket.socket] = []

        def answered() -> bool:
            with contextlib.suppress(OSError):
                silent.append(stack.enter_context(socket.create_connection(("127.0.0.1", port), 5)))
                return True
            return False

        job.wait_until(answered, "the port")
        for _ in range(7):
            assert answered()
        late = stack.enter_context(socket.create_connection(("127.0.0.1", port), 5))
        assert late.recv(1) == b""  # closed at once

        def cut() -> bool:
            """One that goes on and on is cut, too."""
            with contextlib.suppress(TimeoutError):
                try:
                    silent[0].send(b"G")
                    return silent[0].recv(1000) == b""
                except ConnectionError:
                    return True
            return False

        silent[0].settimeout(0.5)
        job.wait_until(cut, "the end of a request without an end")
        for link in silent:
            link.close()
        out, err = ranks.communicate(b"go\n", timeout=300)
        assert ranks.returncode == 0 and b"SCRAPE" in out, err


def test_a_port_that_is_taken_ends_no_job() -> None:
    with Job() as job, socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = ("python", "-c", PROGRAM, "0")
        result = job.run("-np", "2", "--metrics-port", str(port), *words)
    assert f"no metrics are told at port {port} of 127.0.0.1: Address already in use" in result.err


def test_names() -> None:
    every = {counter: 1 for family in FAMILIES for counter, _ in family.counters}
    names = [one.name for one in samples(every)]
    assert len(set(names)) == len(every)
    for family in FAMILIES:
        assert family.help.endswith(".") and not family.name.endswith("_total")
        assert bool(family.label) == (len(family.counters) > 1)


@pytest.mark.ranks(2)
def test_all_counters_have_a_metric() -> None:
    import horoacc as hvd

    known = {counter for family in FAMILIES for counter, _ in family.counters}
    assert set(hvd.counters()) <= known | {"data_moves"}
    name = 'horoacc_reduced_bytes_total{path="arena"}'
    assert hvd.metrics()[name] == hvd.counters()["arena_bytes"]


def test_the_dashboard_asks_for_metrics_that_there_are() -> None:
    board = json.loads((ROOT / "docs" / "metrics_dashboard.json").read_text())
    asked = {
        name
        for panel in board["panels"]
        for target in panel.get("targets", [])
        for name in re.findall(r"horoacc_\w+", target["expr"])
    }
    kinds = {family.name: family.kind for family in FAMILIES}
    there = {name + ("_total" if kind == "counter" else "") for name, kind in kinds.items()}
    assert asked and asked <= there | {"horoacc_rank_up", "horoacc_job"}


@pytest.fixture
def prometheus() -> str:
    """Debian's package."""
    found = shutil.which("prometheus"), shutil.which("promtool")
    if None in found:
        pytest.skip("Debian's package prometheus is not here")
    return str(found[0])


def test_promtool_finds_nothing(prometheus: str, tmp_path: Path) -> None:
    path = tmp_path / "horoacc.prom"
    with Job() as job:
        result = job.run("-np", "1", "--metrics-file", str(path), "python", "-c", PROGRAM, "0")
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=told(result.of(0), "FILE"), text=True,
        capture_output=True, check=False,
    )  # fmt: skip
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


def test_prometheus_scrapes_a_running_job(prometheus: str, tmp_path: Path) -> None:
    port, own, go = free_port(), free_port(), tmp_path / "go"
    (tmp_path / "config.yml").write_text(
        "global: {scrape_interval: 500ms}\nscrape_configs:\n- job_name: training\n"
        f"  static_configs: [{{targets: ['127.0.0.1:{port}']}}]\n"
    )
    server = [
        prometheus, f"--config.file={tmp_path}/config.yml", f"--storage.tsdb.path={tmp_path}/data",
        f"--web.listen-address=127.0.0.1:{own}",
    ]  # fmt: skip
    query = urllib.parse.quote(
        "sum(horoacc_rank_up) * 0 + min(rate(horoacc_submissions_total[5s]))"
    )

    def rate() -> float:
        with contextlib.suppress(OSError, IndexError):
            url = f"http://127.0.0.1:{own}/api/v1/query?query={query}"
            with urllib.request.urlopen(url, timeout=5) as answer:
                return float(json.load(answer)["data"]["result"][0]["value"][1])
        return 0.0

    with Job() as job:
        words = ("--metrics-port", str(port), "python", "-c", WORKS, str(go))
        ranks = job.start("-np", "2", *words)
        scraper = subprocess.Popen(server, stderr=subprocess.DEVNULL)
        try:
            job.wait_until(lambda: rate() > 0, "a scrape of both ranks")
        finally:
            scraper.kill()
            scraper.wait()
        go.touch()
        assert ranks.wait(300) == 0
