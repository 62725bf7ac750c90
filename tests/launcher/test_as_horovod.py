"""`horoaccrun --as-horovod`: a script that imports horovod runs unchanged, its children too."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from launcher_jobs import MODES, ROOT, Job

SAME = """
import importlib, sys
frontend = sys.argv[1]
own = importlib.import_module("horoacc" + frontend)
hvd = importlib.import_module("horovod" + frontend)
assert hvd.allreduce is own.allreduce
horovod = sys.modules["horovod"]
assert horovod.common.util.split_list([1, 2, 3], 2) == [[1, 2], [3]]
assert horovod.runner.run is importlib.import_module("horoacc").run
if frontend:
    assert hvd.mpi_ops.allreduce is own.allreduce
if frontend == ".tensorflow":
    assert callable(hvd.util._cache)
    assert hvd.sync_batch_norm.SyncBatchNormalization is own.SyncBatchNormalization
hvd.init()
print(hvd.rank(), hvd.size())
"""

CHILDREN = """
import multiprocessing, subprocess, sys

class Data:
    def __len__(self):
        return 4
    def __getitem__(self, index):
        import horovod.torch as hvd, horoacc.torch as own
        return index if hvd is own else -1

def child(queue):
    import horovod.common.util as found
    queue.put(found.split_list([1, 2, 3], 2))

if __name__ == "__main__":
    import torch
    import horovod.torch as hvd
    hvd.init()
    spawn = multiprocessing.get_context("spawn")
    queue = spawn.Queue()
    process = spawn.Process(target=child, args=(queue,))
    process.start()
    print(queue.get(timeout=50))
    process.join()
    loader = torch.utils.data.DataLoader(Data(), num_workers=1, multiprocessing_context="spawn")
    print([int(batch) for batch in loader])
    line = "import horovod as h, horoacc as o; print(h.allreduce is o.allreduce)"
    print(subprocess.check_output([sys.executable, "-c", line], text=True).strip())
"""


def test_a_rank_may_call_horovodrun(job: Job) -> None:
    program = "import horovod.torch as hvd; hvd.init(); print(hvd.rank(), hvd.size())"
    line = f"horovodrun --gloo -np 2 {sys.executable} -c '{program}'"
    result = job.run("--tcp", "--as-horovod", "-np", "1", "sh", "-c", line)
    assert sorted(result.of(0)) == ["[0] 0 2", "[1] 1 2"]


@pytest.mark.parametrize(
    ("way", "frontend"), [("tcp", ".torch"), ("tcp", ".tensorflow"), ("openmpi", "")]
)
def test_a_script_imports_horovod(job: Job, way: str, frontend: str) -> None:
    program = (sys.executable, "-c", SAME, frontend)
    result = job.run(*MODES[way], "--as-horovod", "-np", "2", *program)
    for rank in range(2):
        assert result.of(rank) == [f"{rank} 2"]
    job.expect_nothing_left()


def test_children_import_it_too(job: Job, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(CHILDREN)
    result = job.run("--tcp", "--as-horovod", "-np", "1", sys.executable, str(script))
    assert result.of(0) == ["[[1, 2], [3]]", "[0, 1, 2, 3]", "True"]
    job.expect_nothing_left()


def test_the_variable_and_the_configuration_file_ask_for_it(job: Job, tmp_path: Path) -> None:
    program = (sys.executable, "-c", "import horovod; print(horovod.__version__)")
    assert job.run("--tcp", "-np", "1", *program, HOROACC_AS_HOROVOD="1").of(0) == ["0.28.1"]
    config = tmp_path / "job.yaml"
    config.write_text("launcher:\n  as-horovod: true\n")
    asked = job.run("--tcp", "-np", "1", "--config-file", str(config), *program)
    assert asked.of(0) == ["0.28.1"]
    refused = job.run("--tcp", "-np", "1", *program, code=1)
    assert "No module named 'horovod'" in refused.err


def site(folder: Path, text: str) -> str:
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(text)
    return str(folder)


def test_a_users_own_sitecustomize_runs(job: Job, tmp_path: Path) -> None:
    own = site(tmp_path / "site", "import builtins\nbuiltins.greeting = __file__\n")
    paths = os.pathsep.join([own, *filter(None, [os.environ.get("PYTHONPATH")])])
    program = "import horovod, sitecustomize, sys; print(greeting, sitecustomize.__file__)"
    result = job.run(
        "--tcp", "--as-horovod", "-np", "1", sys.executable, "-c", program, PYTHONPATH=paths
    )
    file = str(Path(own) / "sitecustomize.py")
    assert result.of(0) == [f"{file} {file}"]


def test_an_error_in_a_users_sitecustomize_is_told_as_without_us(job: Job, tmp_path: Path) -> None:
    own = site(tmp_path / "site", "raise RuntimeError('of the user')\n")
    paths = os.pathsep.join([own, *filter(None, [os.environ.get("PYTHONPATH")])])
    program = (sys.executable, "-c", "import horovod; print('on')")
    result = job.run("--tcp", "--as-horovod", "-np", "1", *program, PYTHONPATH=paths)
    assert result.of(0) == ["on"]
    assert "RuntimeError: of the user" in "\n".join(result.of(0, "err"))


def test_an_installed_horovod_is_hidden_and_named(job: Job, tmp_path: Path) -> None:
    (tmp_path / "horovod").mkdir()
    (tmp_path / "horovod" / "__init__.py").write_text("__version__ = 'the other one'\n")
    paths = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    program = (sys.executable, "-c", "import horovod; print(horovod.__version__)")
    result = job.run("--tcp", "--as-horovod", "-np", "1", *program, PYTHONPATH=paths)
    assert result.of(0) == ["0.28.1"]
    assert f"not the one at {tmp_path / 'horovod' / '__init__.py'}" in result.err
    without = job.run("--tcp", "-np", "1", *program, PYTHONPATH=paths)
    assert without.of(0) == ["the other one"] and "horovod" not in without.err


def test_a_python_without_horoacc_says_so(tmp_path: Path) -> None:
    """Another environment's Python gets the folder too, and is not disturbed by it."""
    venv.create(tmp_path / "other", with_pip=False)
    python = tmp_path / "other" / "bin" / "python"
    startup = str(ROOT / "horoacc" / "dropin" / "startup")
    for line, code, words in (
        ("import json; print(json.dumps(1))", 0, "1"),
        ("import horovod", 1, "cannot import it: No module named 'horoacc'"),
    ):
        done = subprocess.run(
            [python, "-c", line], env={"PYTHONPATH": startup}, cwd=tmp_path,
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert (done.returncode, words in done.stdout + done.stderr) == (code, True), done


def test_it_costs_nothing_before_horovod_is_imported() -> None:
    startup = str(ROOT / "horoacc" / "dropin" / "startup")
    program = "import sys; print([m for m in sys.modules if m.startswith(('horoacc', 'numpy'))])"
    done = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": startup},
        capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == "[]"


AGAIN = "import horoacc; horoacc.init(); horoacc.shutdown(); horoacc.init()"


@pytest.mark.parametrize("row", ["HOROVOD_CYCLE_TIME", "HOROVOD_ENABLE_XLA_OPS"])
def test_variables_without_a_meaning_get_one_line(job: Job, row: str) -> None:
    program = (sys.executable, "-c", AGAIN)
    result = job.run("--tcp", "-np", "2", *program, **{row: "3"})
    assert result.err.count(f"{row} has no effect") == 1
    alone = subprocess.run(
        program, env=job.environ(**{row: "3"}), capture_output=True, text=True, timeout=300,
        check=True,
    )  # fmt: skip
    assert alone.stderr.count(f"horoacc: {row} has no effect") == 1
