"""Jobs of pods that start in any order, die, are replaced under their index, come and go."""

from __future__ import annotations

import json
import random
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from elastic_jobs import Elastic, pids
from pods import ROOT, Pods

Make = Callable[..., Pods]
EXAMPLES = ROOT / "examples"
PLACED = """
import json, socket, numpy as np, horoacc as hvd
from horoacc.launcher import environment
place = environment.detect()
hvd.init()
sums = float(hvd.allreduce(np.full(2, hvd.rank() + 1.0), op=hvd.Sum)[0])
where = [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), socket.gethostname()]
print(json.dumps([where, place.launcher, sums]))
"""


def shuffled(pods: int) -> list[int]:
    order = list(range(pods))
    random.shuffle(order)
    return order


@pytest.mark.quickest
def test_the_digits_on_pods_that_start_in_any_order(make: Make) -> None:
    pods = make(2, "-np", "2", sys.executable, str(EXAMPLES / "torch_digits.py"))
    running = {index: pods.start(index) for index in shuffled(2)}
    texts = pods.end([running[0], running[1]])
    found = re.search(r"accuracy ([\d.]+) % .* 2 ranks", texts[0])
    assert found and float(found[1]) >= 97.0, texts


@pytest.mark.parametrize("ranks", [1, 2])
def test_ranks_know_their_place_by_the_index(make: Make, ranks: int) -> None:
    pods = make(3, "-np", str(3 * ranks), sys.executable, "-c", PLACED)
    # One rank a pod needs no horoaccrun in it.
    alone = (sys.executable, "-c", PLACED) if ranks == 1 else ()
    running = []
    for index in shuffled(3):
        running.append(pods.start(index, *alone))
        time.sleep(random.uniform(0.0, 0.6))
    texts = "".join(pods.end(running))
    told = sorted(json.loads(text) for text in re.findall(r"\[\[.*\]", texts))
    size = 3 * ranks
    places = [[r, size, r % ranks, ranks, f"digits-{r // ranks}"] for r in range(size)]
    launcher = "kubernetes" if ranks == 1 else "horoaccrun"
    assert told == [[place, launcher, size * (size + 1) / 2] for place in places]


def test_a_killed_pod_ends_all_and_the_next_ones_go_on(make: Make, tmp_path: Path) -> None:
    script = (str(EXAMPLES / "torch_resume.py"), "--checkpoint", str(tmp_path / "digits.pt"))
    pods = make(2, "-np", "2", sys.executable, *script, "--epochs", "30")
    running = [pods.start(index) for index in (1, 0)]
    assert running[1].stdout
    line = ""
    while "epoch 3:" not in line:
        line = running[1].stdout.readline()
        assert line, pods.end(running, code=None)
    assert pods.probe(0) and pods.probe(1)
    pods.kill(1)
    _, told = pods.end(running, code=None)
    assert re.search(r"PeerLost: .*rank 1", told) and running[1].returncode not in (0, None)
    texts = pods.end([pods.start(index) for index in (0, 1)])
    epochs = [int(word) for word in re.findall(r"epoch (\d+):", texts[0])]
    assert epochs[0] >= 4 and epochs[-1] == 30, texts
    found = re.search(r"accuracy ([\d.]+) %", texts[0])
    assert found and float(found[1]) >= 97.0
    pods.job.expect_nothing_left()


def elastic_pods(make: Make, folder: Path, *more: str) -> tuple[Elastic, Pods]:
    elastic = Elastic(None, folder, batches=250, seconds=0.05)  # type: ignore[arg-type]
    flags = ("-np", "4", "--min-np", "2", *more)
    made = make(2, *elastic.arguments(*flags, "--host-timeout-seconds", "3"))
    elastic.job = made.job
    return elastic, made


def test_a_killed_pod_is_replaced_under_its_index(make: Make, tmp_path: Path) -> None:
    elastic, pods = elastic_pods(make, tmp_path, "--slots-per-host", "2")
    running = {index: pods.start(index) for index in (1, 0)}
    pods.job.wait_until(lambda: any(s["size"] == 4 for s in elastic.steps()), "four ranks")
    four = max(line["epoch"] for line in elastic.steps())
    assert pods.probe(0) and pods.probe(1)
    gone = time.time()
    pods.kill(1)
    pods.end([running[1]], code=None)
    again = pods.start(1)
    first, second = pods.end([running[0], again])
    assert "host digits-1 is lost" in first, first
    sizes = elastic.check()
    assert sizes[-1] == 4 and 2 in sizes[four:], (sizes, second)
    after = [line for line in elastic.steps() if line["epoch"] == four + 1]
    assert pids(after, four + 1) < pids(elastic.steps(), four)
    assert min(line["time"] for line in after) - gone < 3 + 3
    pods.job.expect_nothing_left()


def test_the_job_grows_and_shrinks_with_its_completions(make: Make, tmp_path: Path) -> None:
    elastic, pods = elastic_pods(make, tmp_path)
    running = [pods.start(index) for index in (1, 0)]
    pods.job.wait_until(lambda: any(s["size"] == 4 for s in elastic.steps()), "four ranks")
    third = pods.start(2)
    pods.job.wait_until(lambda: any(s["size"] == 6 for s in elastic.steps()), "six ranks")
    pods.terminate(2)
    (told,) = pods.end([third], code=128 + signal.SIGTERM)
    texts = pods.end(running)
    sizes = elastic.check()
    assert sizes[-1] == 4 and 6 in sizes, (sizes, told)
    assert "is lost" not in "".join(texts) and "digits-2 is asked to end" in texts[1], texts
    pods.job.expect_nothing_left()


@pytest.mark.parametrize("flags", [(), ("--min-np", "2")])
def test_pods_without_ipv4(make: Make, flags: tuple[str, ...]) -> None:
    code = "import horoacc as hvd; hvd.init(); hvd.barrier(); print('of', hvd.size(), flush=True)"
    pods = make(2, "-np", "4", *flags, sys.executable, "-c", code)
    pods.only_ipv6()
    texts = "".join(pods.end([pods.start(index) for index in (1, 0)]))
    assert texts.count("of 4") == 4, texts


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"HOROACC_PODS": "3"}, "-np asks for 4 ranks on 3 pods (HOROACC_PODS)"),
        ({"JOB_COMPLETION_INDEX": "x"}, "JOB_COMPLETION_INDEX is 'x'"),
        ({"HOROACC_SECRET": ""}, "HOROACC_RENDEZVOUS (host:port) or HOROACC_SECRET is not"),
        ({"JOB_COMPLETION_INDEX": "2"}, "of which this is number 2"),
    ],
)
def test_a_pod_with_wrong_variables_says_so(make: Make, more: dict[str, str], words: str) -> None:
    pods = make(2, "-np", "4", "true")
    (text,) = pods.end([pods.start(0, **more)], code=1)
    (line,) = [line for line in text.splitlines() if line.startswith("horoaccrun: ")]
    assert words in line
