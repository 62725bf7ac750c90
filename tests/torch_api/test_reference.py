"""The API reference: it is what the docstrings say, and has every public name."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import horoacc
import horoacc.torch

DOCS = Path(__file__).resolve().parents[2] / "docs"


def _reference() -> Any:
    found = importlib.util.spec_from_file_location("api_reference", DOCS / "reference.py")
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[found.name] = module  # dataclasses look their module up
    found.loader.exec_module(module)
    return module


reference = _reference()


@pytest.mark.parametrize("name", sorted(set(reference.CONTENTS) - set(reference.FRONTENDS)))
def test_pages_are_what_the_docstrings_say(name: str) -> None:
    """It raises where nothing is said about an argument."""
    written = (DOCS / "api" / f"{name}.md").read_text()
    assert written == reference.page(name), "run: python docs/reference.py"


def test_pages_of_frontends_that_this_process_does_not_import() -> None:
    for package in ("tensorflow", "keras"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    path = os.pathsep.join([str(DOCS.parent), os.environ["PYTHONPATH"]])
    done = subprocess.run(
        [sys.executable, DOCS / "reference.py", "--check"], capture_output=True, text=True,
        check=False, env=os.environ | {"KERAS_BACKEND": "tensorflow", "PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("frontend", ["tensorflow", "keras"])
def test_every_public_name_of_a_frontend_is_on_its_page(frontend: str) -> None:
    source = (DOCS.parent / "horoacc" / frontend / "__init__.py").read_text()
    (names,) = (
        ast.literal_eval(node.value) for node in ast.parse(source).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )  # fmt: skip
    page = (DOCS / "api" / f"{frontend}.md").read_text()
    shown = set(re.findall(r"^### `(\w+)", page, re.MULTILINE))
    common = {*horoacc.__all__, *horoacc.torch.__all__} - {
        name for part in reference.CONTENTS[frontend][2].values() for name in part
    }
    assert set(names) - shown - common - {"callbacks", "elastic"} == set()


def test_every_public_name_is_on_a_page() -> None:
    pages = "".join((DOCS / "api" / f"{name}.md").read_text() for name in reference.CONTENTS)
    shown = set(re.findall(r"^### `(\w+)", pages, re.MULTILINE))
    general = (DOCS / "api" / "README.md").read_text()
    told = {name for name in reference.CONSTANTS if f"`{name}`" in general}
    told |= set(re.findall(r"^\| `(?:errors\.)?(\w+)` \|", general, re.MULTILINE))
    names = {*horoacc.__all__, *horoacc.torch.__all__} - {"elastic", "errors"}
    assert names - shown - told == set()


def test_every_call_of_the_backend_is_on_its_page() -> None:
    written = (DOCS / "api" / "torch_distributed.md").read_text()
    header = (DOCS.parent / "torch_ops" / "group_backend.h").read_text()
    methods = set(re.findall(r"(?:WorkPointer|void) (\w+)\([^;]*override;", header))
    assert {"allreduce", "alltoall_base", "recvAnysource", "monitoredBarrier"} <= methods
    assert [
        name
        for name in sorted(
            methods - {"setTimeout", "setSequenceNumberForGroup", "abort", "shutdown"}
        )
        if f"`{name}`" not in written
    ] == []


def test_what_a_page_says_of_a_call() -> None:
    page = reference.page("collectives")
    entry = page[page.index("### `allreduce`") : page.index("### `allreduce_async`")]
    assert "allreduce(tensor, average=None, name=None, compression=Compression.none, " in entry
    for words in ("any shape", "HorovodInternalError", "the same bits", "| `op` |"):
        assert words in entry


def test_an_argument_that_nothing_is_said_about_is_found() -> None:
    def silent(told: int, untold: int) -> None:
        """Does nothing.

        Args:
            told: A number.
        """

    with pytest.raises(ValueError, match="untold"):
        reference.entry("silent", silent, 3)
