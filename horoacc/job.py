"""The names that every frontend exports alike: the job, its process sets and the reductions.

A frontend takes them by `import *` and adds its collectives. `__all__` of the module that defines
a name is the one list that has it.
"""

from typing import TYPE_CHECKING

from horoacc import basics, builds, dtypes, process_sets
from horoacc.basics import *
from horoacc.builds import *
from horoacc.dtypes import *
from horoacc.errors import HorovodInternalError as HorovodInternalError
from horoacc.process_sets import *

NAMES = [
    "HorovodInternalError", *basics.__all__, *builds.__all__, *dtypes.__all__,
    *process_sets.__all__,
]  # fmt: skip
if not TYPE_CHECKING:  # mypy knows no lists but literal ones; without a list all names are public
    __all__ = NAMES
