"""The process between `horoacc.run` and its ranks: a horoaccrun that writes down how it ended."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

from horoacc.launcher.arguments import parse_arguments
from horoacc.launcher.main import LaunchError, exit_code, how_it_ended, start_and_wait
from horoacc.launcher.output import Printer


def main() -> None:
    """Runs the job that the command line describes, behind the caller's number and folder."""
    caller, folder = int(sys.argv[1]), Path(sys.argv[2])
    options = parse_arguments(sys.argv[3:])
    printer = Printer(os.environ, options.on("prefix_timestamp"))
    for notice in options.notices:
        printer.say(notice)
    outcome: dict[str, object] = {"refused": "", "failed": None, "text": ""}
    code = 1
    try:
        supervisor, mpirun = start_and_wait(options, printer)
        code = exit_code(supervisor)
        if (failed := supervisor.first_failed) is not None:
            outcome |= {"failed": failed.number, "text": how_it_ended(failed)}
        elif code:
            starter = mpirun.path if mpirun else "the job"
            outcome["text"] = f": {starter} ended with code {code}"
    except LaunchError as error:
        outcome["refused"] = str(error)
    (folder / "outcome").write_text(json.dumps(outcome))
    if os.getppid() != caller:  # nobody is left who would read it
        shutil.rmtree(folder, ignore_errors=True)
    sys.exit(code)
