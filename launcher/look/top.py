"""`horoaccrun top [JOB]`: a running job's ranks, again and again."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from horoacc.launcher.look.asking import Asker, Scope, View
from horoacc.launcher.look.jobs import LookError, find_job
from horoacc.launcher.look.table import COLUMNS, Picture, picture, plain

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["main"]

_SCOPE = Scope(seconds=10, events=1500)
_FIRST = 0.25  # seconds between the two looks that give the first rates


def main(arguments: Sequence[str]) -> int:
    """Runs the command line after `top`; 1 if there is no job to look at."""
    parser = argparse.ArgumentParser(
        prog="horoaccrun top",
        description="Shows the ranks of a running job of this user: how each spends its time, and "
        "which keeps the others waiting. docs/operate.md explains the columns.",
    )
    parser.add_argument(
        "job", nargs="?", help="its name, or the number of a process of it; none: the only one"
    )
    parser.add_argument("--once", action="store_true", help="print it once, as text")
    parser.add_argument("--json", action="store_true", help="print it once, as JSON")
    parser.add_argument(
        "--seconds", type=float, default=0.5, metavar="SECONDS", help="between two looks; 0.5"
    )
    given = parser.parse_args(arguments)
    if not 0.1 <= given.seconds <= 3600:
        parser.error("--seconds must be from 0.1 to 3600")
    try:
        asker = Asker(find_job(given.job))
        if given.json or given.once:
            return _once(asker, given.json)
        return _again(asker, given.seconds)
    except LookError as error:
        print(f"horoaccrun top: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0
    except BrokenPipeError:  # as of `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _first(asker: Asker) -> tuple[View, View]:
    before = asker.look(_SCOPE)
    time.sleep(_FIRST)
    return before, asker.look(_SCOPE)


def _once(asker: Asker, as_json: bool) -> int:
    before, view = _first(asker)
    shown = picture(view, before)
    print(json.dumps(shown.facts) if as_json else plain(shown))
    return 0


def _again(asker: Asker, seconds: float) -> int:
    """Until the job is over."""
    before, view = _first(asker)
    shown = picture(view, before)
    if not sys.stdout.isatty() or importlib.util.find_spec("rich") is None:
        if sys.stdout.isatty():
            print('(pip install "horoacc[top]" for a table that stays in its place)')
        while True:
            print(plain(shown), flush=True)
            time.sleep(seconds)
            before, view = view, asker.look(_SCOPE)
            shown = picture(view, before)
    from rich.live import Live  # noqa: PLC0415 - an extra

    with Live(_drawn(shown), screen=True, auto_refresh=False) as live:
        while True:
            live.update(_drawn(shown), refresh=True)
            time.sleep(seconds)
            before, view = view, asker.look(_SCOPE)
            shown = picture(view, before)


def _drawn(shown: Picture) -> RenderableType:
    from rich import box  # noqa: PLC0415 - an extra
    from rich.console import Group  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for name in COLUMNS:
        right = name not in ("HOST", "STATE", "FOR")
        table.add_column(
            name, justify="right" if right else "left", no_wrap=True,
            overflow="ellipsis" if name == "HOST" else "fold",
        )  # fmt: skip
    for row in shown.rows:
        table.add_row(*row.cells, style="bold red" if row.amiss else "")
    lines = [Text(line.cells[0], style="bold red" if line.amiss else "") for line in shown.lines]
    return Group(*lines, table)
