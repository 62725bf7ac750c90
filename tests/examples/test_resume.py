"""Jobs that are killed whole in mid-training, and go on with as many ranks or another number."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "launcher"))

from launcher_jobs import ROOT, Job
from seeds import SEED

EPOCHS, KILLED_AFTER = 12, 3
FRAMEWORKS = {
    "torch": ("torch_resume.py", "digits.pt", {}),
    "tensorflow": ("tensorflow_resume.py", "digits.npz", {}),
    "keras_on_torch": ("keras_resume.py", "digits.keras", {"KERAS_BACKEND": "torch"}),
    "keras_on_tensorflow": ("keras_resume.py", "digits.keras", {"KERAS_BACKEND": "tensorflow"}),
}


@dataclass
class Told:
    """What a run has printed."""

    losses: dict[int, float]
    accuracy: float
    parameters: str


class Training:
    """Runs of one example, each of which takes a folder with or without a checkpoint."""

    def __init__(self, job: Job, framework: str) -> None:
        self._job = job
        self._script, self._file, self._environ = FRAMEWORKS[framework]

    def arguments(self, folder: Path, ranks: int) -> list[str]:
        script = str(ROOT / "examples" / self._script)
        flags = ["--epochs", str(EPOCHS), "--checkpoint", str(folder / self._file)]
        return ["--tcp", "-np", str(ranks), sys.executable, script, *flags]

    def run(self, folder: Path, ranks: int) -> Told:
        folder.mkdir(exist_ok=True)
        # Without the path of absent packages (tests/conftest.py).
        command = self.arguments(folder, ranks)
        done = self._job.run(*command, seconds=300, PYTHONPATH="", **self._environ)
        found = re.search(rf"accuracy ([\d.]+) % .* {ranks} ranks, parameters (\w+)", done.out)
        assert found, done
        losses = re.findall(r"epoch (\d+): loss ([\d.]+)", done.out)
        return Told(
            {int(epoch): float(loss) for epoch, loss in losses},
            float(found.group(1)),
            found.group(2),
        )

    def kill(self, folder: Path, ranks: int) -> None:
        """Starts it, and kills the launcher and all ranks some time after the third epoch."""
        folder.mkdir()
        process = self._job.start(*self.arguments(folder, ranks), PYTHONPATH="", **self._environ)
        assert process.stdout is not None
        printed = b""
        for line in process.stdout:
            printed += line
            if f"epoch {KILLED_AFTER}:".encode() in line:
                break
        time.sleep(random.Random(SEED).uniform(0, 0.2))
        killed = [process.pid, *(pid for pid, _ in self._job.alive())]
        for pid in killed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert len(killed) > ranks, printed
        printed += process.communicate(timeout=300)[0]
        assert b"accuracy" not in printed, "the job had ended before it was killed"
        self._job.expect_nothing_left()
        # As a kill in the middle of writing leaves it.
        checkpoint = folder / self._file
        assert checkpoint.exists(), printed
        suffix = ".part.keras" if self._file.endswith(".keras") else f"{checkpoint.suffix}.part"
        checkpoint.with_suffix(suffix).write_bytes(checkpoint.read_bytes()[:1000])


@pytest.mark.timeout(600)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_killed_job_goes_on(framework: str, tmp_path: Path) -> None:
    print(f"seed {SEED}")
    with Job() as job:
        training = Training(job, framework)
        whole = training.run(tmp_path / "never killed", 2)
        assert sorted(whole.losses) == list(range(1, EPOCHS + 1))
        assert whole.accuracy >= 97.0

        training.kill(tmp_path / "killed", 2)
        shutil.copytree(tmp_path / "killed", tmp_path / "other")
        again = training.run(tmp_path / "killed", 2)
        first = min(again.losses)
        assert KILLED_AFTER < first <= EPOCHS
        assert again.losses == {epoch: whole.losses[epoch] for epoch in range(first, EPOCHS + 1)}
        assert (again.parameters, again.accuracy) == (whole.parameters, whole.accuracy)

        # Three ranks add in another order, and divide a batch otherwise.
        other = training.run(tmp_path / "other", 3)
        assert sorted(other.losses) == list(range(first, EPOCHS + 1))
        assert other.losses[first] == pytest.approx(whole.losses[first], rel=0.05)
        assert max(other.losses.values()) < whole.losses[1] / 2
        assert other.accuracy >= 97.0
