"""`horoaccrun top [JOB]`: a running job's ranks, again and again."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from horoacc.launcher.look.asking import Asker, Scope, View
from horoacc.launcher.look.jobs import LookError, find_job
from horoacc.launcher.look.table import COLUMNS, LEFT_OUT_FIRST, Line, Picture, picture, plain

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

__all__ = ["main"]

_SCOPE = Scope(seconds=10, events=1500)
_HOST = 24  # characters; the rest of a name does not matter as figures do
_HEAD = 3  # lines of the table above its rows, and one below
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
        with contextlib.closing(Asker(find_job(given.job))) as asker:
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

    with Live(screen=True, auto_refresh=False) as live:
        while True:
            live.update(_drawn(shown, live.console), refresh=True)
            time.sleep(seconds)
            before, view = view, asker.look(_SCOPE)
            shown = picture(view, before)


def _drawn(shown: Picture, console: Console) -> RenderableType:
    """As much as the terminal has room for: no figure is cut, and what is amiss comes first."""
    from rich.console import Group  # noqa: PLC0415 - an extra
    from rich.measure import Measurement  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    wide = console.options.update(max_width=1000)
    lines = [Text(line.cells[0], style="bold red" if line.amiss else "") for line in shown.lines]
    room = console.height - _HEAD - sum(len(line.wrap(console, console.width)) for line in lines)
    rows: Sequence[Line] = shown.rows
    if len(rows) > room:
        rows = sorted(rows, key=lambda row: not row.amiss)[: max(room - 1, 1)]
        more = len(shown.rows) - len(rows)
        lines.append(Text(f"{more} more ranks: make the terminal higher, or use --once"))
    columns = list(COLUMNS)
    for name in ("", *LEFT_OUT_FIRST):
        columns = [one for one in columns if one != name]
        table = _table(rows, columns)
        if Measurement.get(console, wide, table).maximum <= console.width:
            break
    return Group(*lines, *([table] if rows else []))


def _table(rows: Sequence[Line], columns: Sequence[str]) -> Table:
    from rich import box  # noqa: PLC0415 - an extra
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for name in columns:
        right = name not in ("HOST", "STATE", "FOR")
        table.add_column(
            name, justify="right" if right else "left", no_wrap=True,
            max_width=_HOST if name == "HOST" else None,
        )  # fmt: skip
    for row in rows:
        cells = [cell for name, cell in zip(COLUMNS, row.cells, strict=True) if name in columns]
        table.add_row(*cells, style="bold red" if row.amiss else "")
    return table
