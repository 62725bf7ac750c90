"""What the workers of an executor call. A small file, which each of them imports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any


class WithArguments:
    """A function with its arguments, as a function of the executable, which it does not need."""

    def __init__(
        self,
        func: Callable[..., Any],
        args: Sequence[Any] | None,
        kwargs: Mapping[str, Any] | None,
    ) -> None:
        self._func = func
        self._args = tuple(args or ())
        self._kwargs = dict(kwargs or {})

    def __call__(self, _: Any) -> Any:
        """Calls it."""
        return self._func(*self._args, **self._kwargs)


class WithExecutable:
    """A function of the executable, which is made when it is called."""

    def __init__(
        self,
        func: Callable[[Any], Any],
        cls: type | None,
        args: Sequence[Any] | None,
        kwargs: Mapping[str, Any] | None,
    ) -> None:
        self._func = func
        self._cls = cls
        self._args = tuple(args or ())
        self._kwargs = dict(kwargs or {})

    def __call__(self) -> Any:
        """Makes the executable, and calls the function."""
        made = self._cls(*self._args, **self._kwargs) if self._cls is not None else None
        return self._func(made)
