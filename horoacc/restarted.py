"""Runs the program of the parent process once more, with HoroACC as the default backend.

A program under `python -m horoacc.auto` finds this module's name in its `__spec__`: libraries that
start themselves again as `python -m NAME ARGUMENTS` run it as the main module, and multiprocessing
imports it as `__mp_main__` in the processes that it spawns.
"""

import horoacc.auto  # noqa: F401 - which makes HoroACC the default backend
from horoacc import script

if __name__ in ("__main__", "__mp_main__"):
    script.take_over(globals(), again=True)
