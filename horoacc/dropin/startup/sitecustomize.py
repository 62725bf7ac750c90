"""Makes `import horovod` give HoroACC in a Python that has this folder on PYTHONPATH.

It imports nothing of HoroACC before a program imports horovod: most processes of a job never do.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


class HorovodStartup:
    """Waits for the first import of horovod, then lets HoroACC's own finder take over."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Finds horovod through HoroACC, and nothing else."""
        if fullname != "horovod" and not fullname.startswith("horovod."):
            return None
        sys.meta_path.remove(self)
        try:
            from horoacc.dropin import install_as_horovod
        except ImportError as error:
            sys.meta_path.insert(0, self)
            raise ModuleNotFoundError(
                "horovod is to be HoroACC's (--as-horovod), but this Python, "
                + sys.executable
                + ", cannot import it: "
                + str(error),
                name=fullname,
            ) from error
        install_as_horovod()
        return sys.meta_path[0].find_spec(fullname, path, target)


def _run_the_hidden_one() -> None:
    """Runs the sitecustomize that would have run without this one."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != here]
    own = sys.modules.pop("sitecustomize")
    spec = importlib.util.find_spec("sitecustomize")
    if spec is None or spec.loader is None:
        sys.modules["sitecustomize"] = own
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


sys.meta_path.insert(0, HorovodStartup())
_run_the_hidden_one()
