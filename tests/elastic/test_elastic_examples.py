"""The elastic examples, unchanged: ranks die in each phase, and each sample is taken once an epoch.

The weights at the end prove it: from their fingerprint back, each step tells which weights it began
with, and which samples its ranks gave to it (`example_worker.py`).
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import zipfile
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from elastic_jobs import WORKER, Elastic
from launcher_jobs import ROOT

EXAMPLES = ROOT / "examples"
SAMPLES, EPOCHS = 60, 3
HERE = ["--failures-per-host", "1"]  # after the first death nothing is started any more
REPLACED = ["--failures-per-host", "20"]
FORWARD, ANEW = "lose no step", "no rank has the state any more"
NO_GRADIENT = "the error left {}, which is no gradient"
TEST, METRICS = map(NO_GRADIENT.format, ("allreduce.right", "allgather.keras.metrics.names.size"))
WAY = re.compile(rf"epoch \d+: .*({FORWARD}|{ANEW})|last commit: ([^;\n]+)")


def die(*ranks: int, at: str, nth: int = 1) -> list[dict[str, Any]]:
    """Ranks die when they reach a place for the n-th time."""
    return [{"at": at, "nth": nth, "rank": rank, "do": "kill"} for rank in ranks]


def newcomer(worker: int, at: str = "") -> list[dict[str, Any]]:
    """A worker dies at a place, or before it has imported anything."""
    return [{"worker": worker, "do": "kill"} | ({"at": at} if at else {})]


@dataclass
class Case:
    """One job.

    Attributes:
        last: How many ranks took the last step.
    """

    script: str
    ranks: int
    plan: list[dict[str, Any]]
    last: int
    flags: list[str] = field(default_factory=lambda: HERE)
    arguments: list[str] = field(default_factory=list)
    meet: dict[str, int] = field(default_factory=dict)
    """In which epochs of the training the ranks wait until they are how many."""
    environ: dict[str, str] = field(default_factory=dict)
    horovod: bool = False
    """Whether the script says horovod wherever it says horoacc."""
    ways: tuple[str, ...] = (FORWARD,)
    """How the ranks go on after deaths: FORWARD, ANEW, or back to a commit for this reason."""


# An epoch of elastic_torch.py has 5 steps of 3 ranks, 8 of 2 and 15 of 1; of 4 ranks it has 4.
CASES = {
    "torch: first batch; reset; test": Case(
        "elastic_torch.py", 4,
        [*die(3, at="forward"), *die(0, at="reset"), *die(1, at="test")],
        1, ways=(FORWARD, TEST),
    ),
    "torch: first sync; two at once in mid epoch": Case(
        "elastic_torch.py", 4,
        [*die(1, at="sync"), *die(0, 2, at="step", nth=3)],
        1, horovod=True,
    ),
    "torch: last batch; checkpoint; between epochs": Case(
        "elastic_torch.py", 4,
        [*die(2, at="step", nth=4), *die(0, at="checkpoint", nth=2), *die(1, at="between", nth=2)],
        1, ways=(FORWARD, TEST),
    ),
    "torch: commit; save; after the step": Case(
        "elastic_torch.py", 4,
        [*die(0, at="commit"), *die(1, at="save", nth=4), *die(0, at="applied", nth=8)],
        1, ways=(FORWARD, TEST),
    ),
    "torch: import; init; before run; sync of newcomers": Case(
        "elastic_torch.py", 3,
        [
            *newcomer(1), *die(1, at="step", nth=3), *newcomer(4, "init"), *newcomer(5, "built"),
            *newcomer(6, "sync"),
        ],
        3, REPLACED, meet={"1": 3},
    ),
    "imagenet: metric; checkpoint": Case(
        "elastic_torch_imagenet.py", 3,
        [*die(0, at="applied", nth=4), *die(0, at="checkpoint", nth=1)],
        1, arguments=["--batches-per-commit", "3"],
        ways=tuple(map(NO_GRADIENT.format, ("allreduce.train_loss", "allreduce.test_accuracy"))),
    ),
    "imagenet: in a second pass; commit": Case(
        "elastic_torch_imagenet.py", 3,
        [*die(2, at="forward", nth=4), *die(0, at="committed", nth=3)],
        1,
        arguments=["--batches-per-allreduce", "2", "--batches-per-commit", "2", "--fp16-allreduce"],
        ways=("a step takes several backward passes",),
    ),
    "imagenet: all ranks, and the checkpoint": Case(
        "elastic_torch_imagenet.py", 2, die(0, 1, at="step", nth=12), 2, REPLACED,
        meet={"1": 2}, ways=(ANEW,),
    ),
    "tensorflow: mid epoch; test": Case(
        "elastic_tensorflow.py", 3, [*die(0, at="forward", nth=3), *die(1, at="test")], 1,
        ways=(FORWARD, TEST),
    ),
    "tensorflow: checkpoint; a newcomer": Case(
        "elastic_tensorflow.py", 2, [*die(0, at="checkpoint"), *newcomer(2, "sync")],
        2, REPLACED, meet={"1": 2}, horovod=True, ways=(TEST,),
    ),
    "keras on tensorflow: in a step; test; checkpoint": Case(
        "elastic_keras.py", 3, [*die(0, at="forward", nth=3), *die(1, at="test")], 1,
        environ={"KERAS_BACKEND": "tensorflow"}, ways=(FORWARD, METRICS),
    ),
    "keras on torch: checkpoint; two at once in mid epoch": Case(
        "elastic_keras.py", 4, [*die(0, at="checkpoint"), *die(0, 1, at="forward", nth=9)],
        1, environ={"KERAS_BACKEND": "torch"}, horovod=True, ways=(FORWARD, METRICS),
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The examples' data, which jobs then need not get from scikit-learn (tests/absent)."""
    path = tmp_path_factory.mktemp("digits") / "digits.npz"
    program = (
        "import sys, numpy, sklearn.datasets as d; x, y = d.load_digits(return_X_y=True); "
        "numpy.savez(sys.argv[1], images=x, labels=y)"
    )
    command = [sys.executable, "-c", program, str(path)]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": ""}, check=True, timeout=300)
    return path


@pytest.mark.parametrize("name", CASES)
def test_each_sample_once_an_epoch(elastic: Elastic, digits: Path, name: str) -> None:
    case = CASES[name]
    if "tensorflow" in name and importlib.util.find_spec("tensorflow") is None:
        pytest.skip("tensorflow is not installed")
    if "keras" in name and importlib.util.find_spec("keras") is None:
        pytest.skip("keras is not installed")
    told = run(elastic, case, digits)
    assert {"".join(way) for way in WAY.findall(told)} == set(case.ways), told
    done = {path.name for path in elastic.folder.glob("happened.*")}
    assert done == {f"happened.{number}" for number in range(len(case.plan))}, told
    steps = lineage(elastic)
    sizes = [step["size"] for step in steps]
    assert sizes[-1] == case.last
    if case.flags == HERE:
        assert sizes == sorted(sizes, reverse=True)
    taken: dict[int, list[int]] = defaultdict(list)
    last: dict[int, int] = {}
    for step in steps:
        taken[step["training"]] += step["samples"]
        last[step["training"]] = step["size"]
    assert list(taken) == list(range(EPOCHS))
    every = set(taken[0])
    assert len(every) == SAMPLES
    for epoch, samples in taken.items():
        times = Counter(samples)
        assert set(times) == every, (epoch, every - set(times))
        # Only `ElasticSampler` and its like fill up the last batches, so that ranks have as many.
        more = 0 if "keras" in name else last[epoch] - 1
        assert len(samples) - SAMPLES <= more, (epoch, times.most_common(5))


def run(elastic: Elastic, case: Case, digits: Path) -> str:
    """Runs the job to its end with code 0. Returns what horoaccrun told."""
    script = EXAMPLES / case.script
    if case.horovod:
        folder = elastic.folder / "examples"
        folder.mkdir()
        for path in EXAMPLES.glob("*.py"):
            text = path.read_text().replace("import horoacc.", "import horovod.")
            (folder / path.name).write_text(text)
        script = folder / case.script
        assert "horoacc." not in re.sub(r'""".*?"""', "", script.read_text(), flags=re.DOTALL)
    elastic.plan = case.plan
    (elastic.folder / "plan").write_text(json.dumps(case.plan))
    (elastic.folder / "options").write_text(json.dumps({"sizes": case.meet, "digits": str(digits)}))
    saved = elastic.folder / {"elastic_torch.py": "d.pt", "elastic_keras.py": "d.keras"}.get(
        case.script, "saved"
    )
    where = "--checkpoint" if saved.suffix else "--checkpoints"
    batch = "12" if case.script == "elastic_keras.py" else "4"
    result = elastic.job.run(
        "-np", str(case.ranks), "--min-np", "1", *case.flags,
        *(["--as-horovod"] if case.horovod else []),
        sys.executable, str(WORKER.with_name("example_worker.py")), str(elastic.folder),
        str(script), where, str(saved), "--epochs", str(EPOCHS), "--samples", str(SAMPLES),
        "--batch-size", batch, *case.arguments,
        TF_CPP_MIN_LOG_LEVEL="2", OMP_NUM_THREADS="1", **case.environ,
    )  # fmt: skip
    elastic.job.expect_nothing_left()
    assert re.search(rf"epoch {EPOCHS}: .*accuracy [\d.]+ %, {case.last} ranks", result.out)
    check_whole(saved)
    return result.err


def check_whole(saved: Path) -> None:
    """The last checkpoint is one: no rank died in the middle of it, or it was written again."""
    if saved.suffix == ".pt":
        assert torch.load(saved)["epoch"] == EPOCHS
    elif saved.suffix == ".keras":
        assert zipfile.ZipFile(saved).testzip() is None
    elif (index := saved / "checkpoint").exists():  # of TensorFlow: the file names the newest
        assert f'model_checkpoint_path: "ckpt-{EPOCHS}"' in index.read_text()
        assert (saved / f"ckpt-{EPOCHS}.index").exists()
    else:
        assert torch.load(saved / f"checkpoint-{EPOCHS}.pt")["model"]


def lineage(elastic: Elastic) -> list[dict[str, Any]]:
    """The steps that the weights at the end are made of, with the samples of all ranks."""
    ends = elastic.lines_of("end")
    assert ends and len({end["weights"] for end in ends}) == 1, "the ranks trained different models"
    given: dict[tuple[int, str], list[dict[str, Any]]] = defaultdict(list)
    for line in elastic.lines_of("gives"):
        given[line["epoch"], line["before"]].append(line)
    made: dict[str, dict[str, Any]] = {}
    for line in elastic.lines_of("applied"):  # the same step done again has the same weights
        if line["after"] not in made or line["epoch"] >= made[line["after"]]["epoch"]:
            made[line["after"]] = line
    steps = []
    weights = ends[0]["weights"]
    while weights in made:
        line = made.pop(weights)
        weights = line["before"]
        lines = given[line["epoch"], weights]
        assert {one["rank"] for one in lines} == set(range(line["size"])), line
        (training,) = {one["training"] for one in lines}
        samples = [sample for one in lines for sample in one["samples"]]
        steps.append({"training": training, "size": line["size"], "samples": samples})
    return steps[::-1]
