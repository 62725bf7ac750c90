"""The Dockerfiles, as far as they can be read; `dockerfile.py` carries them out."""

from __future__ import annotations

from pathlib import Path

import pytest
from bare import COMPILER, ROOT
from dockerfile import Build, instructions, is_ignored, read_ignored

FILES = sorted((ROOT / "examples" / "docker").glob("*/Dockerfile"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parent.name)
def test_what_they_copy_is_there_and_no_compiler_stays(file: Path) -> None:
    stages: list[list[tuple[str, str]]] = []
    for word, rest in instructions(file.read_text()):
        assert hasattr(Build, f"_{word.lower()}"), word
        if word == "FROM":
            stages.append([])
        stages[-1].append((word, rest))
        if word == "COPY" and not rest.startswith("--from="):
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists() and not is_ignored(source, read_ignored()), rest
    assert len(stages) == 2
    built, left = (
        {name for word, rest in stage if word == "RUN" for name in rest.split()} for stage in stages
    )
    assert {"g++", "python3-dev"} <= built
    assert not [name for name in left if COMPILER.fullmatch(name)]


def test_there_is_one_for_cpus_and_one_for_gpus() -> None:
    assert [file.parent.name for file in FILES] == ["cpu", "cuda"]


def test_what_a_build_leaves_out() -> None:
    patterns = read_ignored()
    for path in (".git", ".venv", "build", "dist", "horoacc/_core.so", "horoacc/lib/x.so"):
        assert is_ignored(path, patterns), path
    for path in ("csrc", "horoacc/launcher/build", "tests/install/dockerfile.py", "setup.py"):
        assert not is_ignored(path, patterns), path
