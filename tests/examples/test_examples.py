"""The main job: real digits, on one rank and on two."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from pool import Pools

HERE = Path(__file__)
EXAMPLES = HERE.resolve().parents[2] / "examples"
HOROACCRUN = "import sys; from horoacc.launcher.main import main; sys.exit(main())"


def run(ranks: int, script: str, *flags: str, seconds: float) -> subprocess.CompletedProcess[str]:
    """Runs a script as a user starts it."""
    # The examples' digits are scikit-learn's, which other tests do without (tests/conftest.py).
    foreign = ("OMPI_", "PMIX_", "PMI_", "HOROVOD_", "HOROACC_", "PYTHONPATH")
    variables = {
        name: value for name, value in os.environ.items()
        if not name.startswith(foreign) or name == "HOROACC_CACHE_DIR"
    }  # fmt: skip
    return subprocess.run(
        [sys.executable, "-c", HOROACCRUN, "-np", str(ranks),
         sys.executable, str(EXAMPLES / script), *flags],
        env=variables, capture_output=True, text=True, timeout=seconds, check=False,
    )  # fmt: skip


def script(name: str, flags: list[str]) -> tuple[object, str, str]:
    """Runs a script in a rank that waits for it; gives its exit code and what it wrote."""
    out, err = io.StringIO(), io.StringIO()
    code: object = 0
    before = sys.argv
    sys.argv = [name, *flags]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    except SystemExit as end:
        code = end.code
    finally:
        sys.argv = before
    return code, out.getvalue(), err.getvalue()


def in_pool(
    pools: Pools, ranks: int, name: str, *flags: str, framework: str = "horoacc.torch",
    backend: str | None = None,
) -> list[tuple[object, str, str]]:  # fmt: skip
    """The same script by the ranks of a pool, which need not import the framework again."""
    variables = {"HOROACC_TEST_IMPORTS": "sklearn.datasets", "PYTHONPATH": ""}
    if backend:
        variables["KERAS_BACKEND"] = backend
    pool = pools.get(ranks, framework, variables)
    return pool.run(HERE, "script", {"name": name, "flags": list(flags)}, 110)


def accuracy(text: str) -> float:
    found = re.search(r"accuracy ([\d.]+) %", text)
    assert found, text
    return float(found.group(1))


def test_two_ranks_reach_what_one_reaches(pools: Pools) -> None:
    done = run(2, "torch_digits.py", seconds=200)
    assert done.returncode == 0, done.stderr
    together = accuracy(done.stdout)
    assert together >= 97.0
    ((code, out, err),) = in_pool(pools, 1, "torch_digits.py")
    assert code == 0, err
    # Sums of another order may turn one of the 360 held-out digits.
    assert abs(together - accuracy(out)) <= 100 / 360 + 0.01
    bars = [line for line in re.split(r"[\r\n]", done.stdout + done.stderr) if "epochs" in line]
    assert bars
    assert not [line for line in bars if line.startswith("[1")]


def test_sixteen_ranks(pools: Pools) -> None:
    told = in_pool(pools, 16, "torch_digits.py", "--epochs", "1")
    assert [code for code, _, _ in told] == [0] * 16, told
    accuracy(told[0][1])
    assert "16 ranks" in told[0][1]


def test_ranks_that_do_not_communicate_are_found_out(pools: Pools) -> None:
    told = in_pool(pools, 2, "torch_digits.py", "--epochs", "1", "--no-communication")
    assert [code for code, _, _ in told] == [1, 1]
    assert "did not train the same model" in told[0][2]


@pytest.mark.parametrize("flags", [[], ["--model", "cnn", "--compression", "bf16"]])
def test_benchmark(pools: Pools, flags: list[str]) -> None:
    shape = ("--width", "32", "--depth", "2", "--steps", "3", "--warmup", "1", "--json")
    told = in_pool(pools, 2, "torch_benchmark.py", *shape, *flags)
    for code, _, err in told:
        assert code == 0, err
    found = json.loads(told[0][1][told[0][1].index("{") :])
    assert found["ranks"] == 2
    assert found["samples_per_second"] > 0
    assert 0 <= found["share_of_time_in_communication"] <= 1
    assert found["share_reduced_in_place"] > 0.5


def good(ranks: int, script: str) -> str:
    """What a script printed that has ended well, with the accuracy that the examples promise."""
    done = run(ranks, script, seconds=220)
    assert done.returncode == 0, done.stderr
    assert accuracy(done.stdout) >= 97.0
    return done.stdout


@pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed"
)
def test_tensorflow_on_two_ranks() -> None:
    assert "2 ranks" in good(2, "tensorflow_digits.py")


@pytest.mark.skipif(importlib.util.find_spec("keras") is None, reason="keras is not installed")
@pytest.mark.parametrize("backend", ["torch", "tensorflow"])
def test_keras(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    monkeypatch.setenv("KERAS_BACKEND", backend)
    printed = good(2, "keras_digits.py")
    assert f"2 ranks, Keras on {backend}" in printed
    # Progress is rank 0's.
    assert "Epoch 12/12" in printed
    assert not re.search(r"^\[1.*Epoch", printed, re.MULTILINE)


@pytest.mark.skipif(importlib.util.find_spec("keras") is None, reason="keras is not installed")
def test_ranks_of_keras_that_do_not_communicate_are_found_out(pools: Pools) -> None:
    flags = ("--epochs", "1", "--no-communication")
    told = in_pool(pools, 2, "keras_digits.py", *flags, framework="horoacc.keras", backend="torch")
    assert [code for code, _, _ in told] == [1, 1], told
    assert "did not train the same model" in told[0][2]
