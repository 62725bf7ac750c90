"""The checks of tests/gpu on a machine with a GPU; `tests/gpu/run.sh` times as well."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from horoacc import cuda_plugin


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "part", ["reduce_is_exact", "factors_are_exact", "pack_is_exact", "nonfinite_is_counted"]
)
def test_kernels(part: str) -> None:
    if trouble := cuda_plugin.trouble():
        pytest.skip(trouble)
    script = Path(__file__).with_name("check_kernels.py")
    subprocess.run([sys.executable, str(script), str(cuda_plugin.LIBRARY), part], check=True)


def test_trouble_names_what_is_missing() -> None:
    trouble = cuda_plugin.trouble(4096)
    assert any(what in trouble for what in ("GPU 4096: ", "no NVIDIA driver", "where nvcc is"))
