"""The scripts of tests/gpu/run.sh, on the GPU that the host plays: scripts without a slip in
them, the figures that they print, and what is judged by them.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import fake_gpu
import pytest
import torch

import horoacc.torch as hvd

sys.path.append(str(fake_gpu.ROOT / "tests/gpu"))
import bounds
import check_collectives
import check_kernels
import kernels

SCRIPTS = fake_gpu.ROOT / "tests/gpu"
PLUGIN = {"HOROACC_CUDA_PLUGIN": str(fake_gpu.plugin())}


class _Event:
    """One of torch's, as the scripts use them."""

    def __init__(self, enable_timing: bool = False) -> None:
        assert enable_timing
        self._at = 0.0

    def record(self) -> None:
        self._at = time.perf_counter()

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, other: _Event) -> float:
        return 1e3 * (other._at - self._at)


@contextlib.contextmanager
def small() -> Iterator[io.StringIO]:
    """Stands for torch's calls of a real GPU, with small sizes; returns the output."""
    gpu = fake_gpu.install()
    once = check_kernels.milliseconds
    said = io.StringIO()
    replaced: list[tuple[object, str, object]] = [
        (torch.cuda, "Event", _Event),
        (torch.cuda, "Stream", lambda _: None),
        (torch.cuda, "stream", lambda _: gpu.stream()),
        (torch.cuda, "synchronize", lambda *_: None),
        (torch.Tensor, "pin_memory", lambda tensor: tensor),
        (check_kernels, "TENSORS", 120),
        (check_kernels, "SHAPES", ((1, 0), (131, 3))),
        (check_kernels, "TYPES", {torch.int16: 3, torch.bfloat16: 7}),
        (check_kernels, "milliseconds", lambda call, _=0: once(call, 1)),
        *((script, "MIB", 1 << 10) for script in (check_kernels, check_collectives)),
        *((script, "SIZES", (64,)) for script in (check_kernels, check_collectives)),
    ]
    with contextlib.ExitStack() as stack:
        for where, name, value in replaced:
            stack.enter_context(mock.patch.object(where, name, value))
        stack.enter_context(contextlib.redirect_stdout(said))
        yield said


@pytest.mark.ranks(1, framework="horoacc.torch", env=PLUGIN)
def test_the_scripts_of_kernels() -> None:
    on_gpu = kernels.Kernels(fake_gpu.plugin())
    with small() as said:
        for part in check_kernels.PARTS:
            if part is not check_kernels.launches_of_a_pack:  # the profiler knows GPUs alone
                part(on_gpu)
    rows = bounds.figures([said.getvalue()])
    found = {(row["what"], row.get("to"), row.get("ranks")) for row in rows if "of copy" in row}
    assert {("pack", "float32", None), ("pack", "bfloat16", None)} < found
    assert {(what, None, n) for what in ("reduce", "reduce to all") for n in (2, 4, 8)} < found


# Not the ranks of which other tests put each on a GPU of its own: what was refused stays so.
ONE_GPU = {"HOROACC_GPU_MODE": "leader", "FAKE_GPU_EACH": "0"}


@pytest.mark.ranks(2, framework="horoacc.torch", env=PLUGIN | ONE_GPU)
def test_the_scripts_of_collectives() -> None:
    with small() as said:
        check_collectives.the_mode_is_used()
        check_collectives.streams_are_kept()
        check_collectives.times_of_allreduce()
        check_collectives.times_of_small_allreduce()
        check_collectives.times_of_the_bound()
    rows = bounds.figures([said.getvalue()])
    if hvd.rank() == 0:
        assert [row["parts"] for row in rows if row["what"] == "allreduce"] == [8, 1]
        assert [row["KiB"] for row in rows if row["what"] == "small allreduce"] == [1, 64, 1024]
        assert [row["of 6NS"] > 0 for row in rows if row["what"] == "bound"] == [True]
    else:
        assert not rows


def test_the_scripts_name_what_there_is() -> None:
    text = (SCRIPTS / "run.sh").read_text()
    assert subprocess.run(["bash", "-n", str(SCRIPTS / "run.sh")], check=False).returncode == 0
    parts = {part.__name__ for part in check_kernels.PARTS}
    named = set(re.findall(r"^kernels ([a-z_ ]+)", text, re.M))
    assert {name for line in named for name in line.split()} == parts
    words = set(re.findall(r"\b[a-z]+_[a-z_]+\b", text))
    for name in vars(check_collectives):
        if name.startswith("times_of"):
            assert name in words, name


def test_figures_are_judged() -> None:
    def row(what: str, **more: object) -> str:
        return bounds.json.dumps({"what": what, **more})

    good = [
        row("pack", to="float32", **{"of copy": 0.9}),
        row("pack", to="bfloat16", **{"of copy": 0.86}),
        row("reduce", **{"of copy": 0.85}), row("launches", tensors=2000, kernels=1),
        row("reduce to all", **{"of copy": 0.81}),
        *(row("bound", mode="leader", mps=mps, ranks=4, **{"of 6NS": 0.8}) for mps in (0, 1)),
        *(row("against gloo", mps=mps, ranks=4, ratio=1.1) for mps in (0, 1)),
        row("allreduce", mode="cpu_reduce", MiB=64, **{"of both ways": 0.8}),
        row("allreduce", mode="cpu_reduce", MiB=16, **{"of both ways": 0.1}),
        *(row("released", mode=mode, s=4.9) for mode in bounds.MODES),
        *(row("step", model=model, ms=9, **{"ms gloo": 10})
          for model in ("ResNet-50", "GPT-2 small")),
    ]  # fmt: skip
    for size, kind in bounds.CHOSEN.items():
        good += [row(kind, ranks=2, bytes=size, us=3.0),
                 row("NCCL 2.30.7", ranks=2, bytes=size, us=4.0)]  # fmt: skip
    everything = [f"0: {line}\nnoise {{" for line in good]
    assert all(
        bound.verdict().startswith("MET ") for bound in bounds.bounds(bounds.figures(everything))
    )
    bad = [row("reduce", **{"of copy": 0.84}), row("released", mode="leader", s=5.0),
           row("launches", tensors=2000, kernels=2),
           row("NCCL 2.30.7", ranks=2, bytes=8 << 10, us=2.9)]  # fmt: skip
    for line in bad:
        verdicts = [bound.verdict() for bound in bounds.bounds(bounds.figures([*everything, line]))]
        assert sum(verdict.startswith("NOT MET ") for verdict in verdicts) == 1, line
    assert all(bound.verdict().startswith("NOT MEASURED") for bound in bounds.bounds([]))


def test_the_probe_holds_on_the_played_gpu(tmp_path: Path) -> None:
    probe = tmp_path / "probe"
    subprocess.run(["g++", "-std=c++20", f"-I{fake_gpu.ROOT / 'csrc'}", str(SCRIPTS / "probe.cc"),
                    "-ldl", "-o", str(probe)], check=True)  # fmt: skip
    done = subprocess.run([str(probe), str(fake_gpu.plugin())],
                          env={**os.environ, "PROBE_SECONDS": "120"},
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    lines = bounds.table(
        done.stdout, "PASS probe, 3 s\nNOT CHECKED mode NCCL: it is not there\n", []
    )
    assert lines[2:4] == ["| probe |  | 3 s | PASS |",
                          "| mode NCCL |  | it is not there | NOT CHECKED |"]  # fmt: skip
    assert len([line for line in lines if line.endswith("| CUDA does so |  | yes |")]) == 6
    assert len([line for line in lines if line.endswith("µs |  |")]) == 9


def test_a_run_is_judged_from_its_folder(tmp_path: Path) -> None:
    (tmp_path / "part.txt").write_text('[0] {"what": "reduce", "of copy": 0.5}\n')
    done = subprocess.run([sys.executable, str(SCRIPTS / "bounds.py"), str(tmp_path)],
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 1
    assert "NOT MET       reduce: at least 85 %" in done.stdout
