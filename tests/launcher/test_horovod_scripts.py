"""Scripts written from Horovod's documentation run unchanged under `--as-horovod`.

Some of torch's run in ranks that have called `install_as_horovod()` instead, as the flag
does in theirs, and need not be started.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
import runpy
import sys
from pathlib import Path

import pytest
from launcher_jobs import MODES, ROOT, Job, Result
from pool import Pools

import horoacc

SCRIPTS = ROOT / "tests" / "horovod_scripts"
# Importing a framework for the first time takes a minute on a busy machine.
SECONDS = 220
pytestmark = pytest.mark.timeout(2 * SECONDS + 40)


def run(job: Job, mode: list[str], ranks: int, script: str, *arguments: str) -> Result:
    path = SCRIPTS / script
    assert "horoacc" not in path.read_text()
    result = job.run(
        *mode, "--as-horovod", "-np", str(ranks), sys.executable, str(path), *arguments,
        seconds=SECONDS,
    )  # fmt: skip
    # TensorFlow's own, at any level of messages.
    told = [line for line in result.err.splitlines() if "absl::InitializeLog" not in line]
    assert not [line for line in told if "Traceback" in line or "warning" in line.lower()], told
    job.expect_nothing_left()
    return result


@pytest.mark.parametrize(
    ("way", "ranks", "flags"),
    [
        ("tcp", 2, ("--fp16-allreduce",)),
        ("openmpi", 2, ("--gradient-predivide-factor", "2")),
    ],
)
def test_plain(job: Job, tmp_path: Path, way: str, ranks: int, flags: tuple[str, ...]) -> None:
    saved = str(tmp_path / "model.pt")
    result = run(job, MODES[way], ranks, "plain.py", "--checkpoint", saved, *flags)
    *epochs, last = result.of(0)
    losses = [float(line.split("loss ")[1].split(",")[0]) for line in epochs]
    assert len(losses) == 4 and losses[-1] < 0.5 * losses[0] + 0.05
    assert float(epochs[-1].rpartition(" ")[2]) > 0.9
    assert last == "same everywhere: True, saved: True"
    assert not any(result.of(rank) for rank in range(1, ranks))


def in_rank(script: str, arguments: list[str]) -> list[str]:
    """Runs a script in a rank of a pool, which leaves its job for it."""
    import horoacc.torch as hvd

    hvd.shutdown()
    horoacc.install_as_horovod()
    sys.argv = [script, *arguments]
    with contextlib.redirect_stdout(io.StringIO()) as said:
        runpy.run_path(str(SCRIPTS / script), run_name="__main__")
    hvd.shutdown()
    hvd.init()
    return said.getvalue().splitlines()


def by_pool(pools: Pools, ranks: int, script: str, *arguments: str) -> list[list[str]]:
    """Each rank's output in a pool: a job starts in the same way for all scripts of torch."""
    pool = pools.get(ranks, "horoacc.torch", {"HOROACC_TEST_AS_HOROVOD": "1"})  # of its own
    given = {"script": script, "arguments": list(arguments)}
    return pool.run(Path(__file__), "in_rank", given, SECONDS)


@pytest.mark.parametrize(("ranks", "resets"), [(1, 0), (2, 1)])
def test_elastic(pools: Pools, ranks: int, resets: int) -> None:
    for *before, last in by_pool(pools, ranks, "elastic.py", *["fail"] * resets):
        assert before == ["reset"] * resets
        assert re.fullmatch(r"loss small, weights \[1.0, -2.0, 0.5\], epoch 2", last), last


def test_process_sets_and_uneven_data(pools: Pools) -> None:
    for rank, said in enumerate(by_pool(pools, 4, "process_sets_uneven.py")):
        even = rank % 2 == 0
        assert said == [
            "0 [0, 1, 2, 3]", "1 [0, 2]", "2 [1, 3]",
            f"half {2 if even else 4}",
            f"rows {[0, 2, 2] if even else [1, 3, 3]}",
            f"from {2 if even else 3}",
            "low or high 2",
            # One step with all, then with 3, 2 and 1 of 4: -(1 + 3/4 + 2/4 + 1/4).
            "last 3, weight -2.5",
        ]  # fmt: skip


@pytest.mark.skipif(importlib.util.find_spec("keras") is None, reason="keras is not installed")
@pytest.mark.parametrize(
    ("backend", "flags", "resumes"),
    [("torch", ("--fp16-allreduce",), False), ("tensorflow", (), True)],
)
def test_keras(
    job: Job,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    backend: str,
    flags: tuple[str, ...],
    resumes: bool,
) -> None:
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    monkeypatch.setenv("KERAS_BACKEND", backend)
    saved = ("--checkpoint-dir", str(tmp_path), *flags)
    begun = run(job, ["--tcp"], 2, "keras_fit.py", *saved, "--epochs", "3").of(0)
    assert begun[-1] == "same everywhere: True"
    assert any("finished gradual learning rate warmup to 0.1." in line for line in begun)
    if not resumes:
        return
    resumed = run(job, ["--tcp"], 2, "keras_fit.py", *saved).of(0)
    assert re.fullmatch(r"accuracy (0\.9\d*|1\.0) from epoch 3", resumed[-2]), resumed[-2]
    assert resumed[-1] == "same everywhere: True"
    assert sum(line.startswith("Epoch ") for line in resumed) == 3


def without(*packages: str) -> pytest.MarkDecorator:
    absent = [name for name in packages if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(absent), reason=f"{', '.join(absent)} is not installed")


@pytest.mark.parametrize(
    ("legacy", "flags"),
    [
        pytest.param("0", (), id="keras", marks=without("tensorflow")),
        pytest.param(
            "1", ("--fp16-allreduce",), id="tf_keras", marks=without("tensorflow", "tf_keras")
        ),
    ],
)
def test_tensorflow(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, legacy: str, flags: tuple[str, ...]
) -> None:
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", legacy)
    saved = ("--checkpoint-dir", str(tmp_path), *flags)
    result = run(job, ["--tcp"], 2, "tensorflow_tape.py", *saved)
    *steps, accuracy, same = result.of(0)
    assert steps == ["step 0", "step 10", "step 20"]
    assert re.fullmatch(r"accuracy (0\.9\d*|1\.0) ranks 2", accuracy), accuracy
    assert same == "same everywhere: True"
    assert list(tmp_path.glob("checkpoint-1.index"))
    assert not result.of(1)


@without("tensorflow")
def test_tensorflow_session(job: Job, tmp_path: Path) -> None:
    result = run(job, ["--tcp"], 2, "tensorflow_session.py", str(tmp_path))
    for rank in range(2):
        assert result.of(rank) == ["weights [1.0, -2.0, 0.5]"]
    assert list(tmp_path.glob("model.ckpt-*.index"))
