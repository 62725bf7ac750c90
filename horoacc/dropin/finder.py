"""Answers `import horovod…` with the objects of HoroACC."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from horoacc.dropin import names


class HorovodFinder(MetaPathFinder, Loader):
    """Finds and loads every module named `horovod` or below it, before any other finder."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Finds a module.

        Args:
            fullname: Its name.
            path: Not looked at: the modules lie nowhere.
            target: Not looked at.

        Returns:
            A module spec, or None if the name is not Horovod's.

        Raises:
            ModuleNotFoundError: It is Horovod's and HoroACC has nothing for it. Raised here, so
                that nobody else finds a second copy of a file of HoroACC's, or a real Horovod.
        """
        if fullname != "horovod" and not fullname.startswith("horovod."):
            return None
        if why := names.absent(fullname):
            raise ModuleNotFoundError(why, name=fullname)
        if fullname in names.NAMES:
            return ModuleSpec(fullname, self, origin="horoacc", is_package=True)
        same = names.MODULES.get(fullname) or _same_name(fullname)
        if same is None:
            raise ModuleNotFoundError(
                f"No module named {fullname!r}: HoroACC has no such part of Horovod", name=fullname
            )
        return ModuleSpec(fullname, self, origin="horoacc", loader_state=same, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Makes an empty module of names, or leaves it to the import system.

        Args:
            spec: The result of `find_spec`.

        Returns:
            The module, or None for one that `exec_module` replaces.
        """
        return None if spec.loader_state else _Names(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Puts the module of HoroACC's in the place of the one that was made for the name.

        Args:
            module: The result of `create_module`.
        """
        spec = module.__spec__
        assert spec is not None
        if spec.loader_state:
            # The import system takes the module from there, and leaves its attributes alone.
            sys.modules[spec.name] = importlib.import_module(str(spec.loader_state))
            # What Horovod's own module imports is an attribute of it.
            for name in names.parts(spec.name):
                importlib.import_module(name)


class _Names(ModuleType):
    """A module of the table's names, each looked up when it is first asked for."""

    def __getattr__(self, name: str) -> Any:
        found = names.NAMES[self.__name__].get(name)
        if f"{self.__name__}.{name}" in names.SHOWN:
            return importlib.import_module(f"{self.__name__}.{name}")
        if found is None:
            # `import horovod as hvd` has what `import horoacc as hvd` has.
            if self.__name__ == "horovod" and not name.startswith("__"):
                return getattr(importlib.import_module("horoacc"), name)
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        module, _, attribute = found.partition(":")
        value = getattr(importlib.import_module(module), attribute)
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *names.NAMES[self.__name__]})

    @property
    def __all__(self) -> list[str]:
        listed = names.NAMES[self.__name__]
        return [name for name in listed if not name.startswith("_")]


def _same_name(fullname: str) -> str | None:
    """HoroACC's module with the same name below its root, if there is one."""
    own = "horoacc" + fullname.removeprefix("horovod")
    try:
        return own if importlib.util.find_spec(own) is not None else None
    except ModuleNotFoundError:
        return None
