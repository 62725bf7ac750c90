"""Hooks in C++, which submit a gradient in less time than a Python hook takes to start.

They serve the usual optimizer: one backward pass a step, no compression, no groups. Python submits
the gradients that they skip (sparse ones, other memory orders, refused ones) at `synchronize()`.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from horoacc.backward_passes import BACKWARD_TOO_OFTEN
from horoacc.errors import from_core
from horoacc.reduction import Scaling
from horoacc.torch import _ops

# A wait comes back this often to let Python's signal handlers run.
_SLICE_SECONDS = 0.2


class _Error(ctypes.Structure):
    """ha_error of csrc/api/horoacc.h."""

    _fields_ = (
        ("kind", ctypes.c_int32),
        ("culprit", ctypes.c_int32),
        ("collective", ctypes.c_int64),
        ("message", ctypes.c_char * 4096),
        ("host", ctypes.c_char * 256),
        ("tensor", ctypes.c_char * 512),
        ("hint", ctypes.c_char * 512),
    )


class _CompiledHooks:
    """The Python objects that the C++ side needs for compiled backward passes."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.hooks: int | None = None
        self._library = library
        self._made: dict[int, Callable[..., None]] = {}

    def __call__(self, index: int) -> Callable[..., None]:
        """Gives the hook of a parameter, always the same: the graph is compiled for it."""
        if index not in self._made:

            def hook(*_: Any) -> None:
                if self.hooks is None:
                    return  # removed since the graph was made
                if not self._library.ha_torch_hooks_accumulated(self.hooks, index):
                    raise AssertionError(BACKWARD_TOO_OFTEN)

            # A graph break here, so that the gradient is stored and submitted at once.
            self._made[index] = torch.compiler.disable(hook)  # type: ignore[no-untyped-call]
        return self._made[index]

    def destroy(self) -> None:
        """Takes the hooks off."""
        hooks, self.hooks = self.hooks, None
        self._library.ha_torch_hooks_destroy(hooks)


class GradientHooks:
    """Hooks on the parameters of one optimizer. They go when this object does."""

    def __init__(
        self,
        library: ctypes.CDLL,
        engine: Any,
        process_set: int,
        scaling: Scaling,
        params: Sequence[torch.Tensor],
        names: Sequence[str],
    ) -> None:
        """Puts the hooks on leaves."""
        count = len(params)
        self.engine = engine
        self._params = list(params)
        self._index_of = {param: index for index, param in enumerate(params)}
        self._library = library
        self._indices = (ctypes.c_size_t * count)()
        compiled = _CompiledHooks(library)
        self._hooks = compiled.hooks = library.ha_torch_hooks_create(
            engine.address, process_set, scaling.op, scaling.prescale, scaling.postscale,
            (ctypes.c_void_p * count)(*(param._cdata for param in params)),
            (ctypes.c_char_p * count)(*(name.encode() for name in names)), count,
            BACKWARD_TOO_OFTEN.encode(), compiled,
        )  # fmt: skip
        self.remove = weakref.finalize(self, compiled.destroy)
        # At exit the process, not this, frees the hooks that autograd still refers to.
        self.remove.atexit = False

    @property
    def on(self) -> bool:
        """Whether the hooks are still on: a later optimizer's take the place of these."""
        return self.remove.alive

    @property
    def touched(self) -> bool:
        """Whether a gradient was accumulated since the last step."""
        return bool(self._library.ha_torch_hooks_touched(self._hooks))

    @property
    def in_flight(self) -> bool:
        """Whether gradients are being reduced."""
        return bool(self._library.ha_torch_hooks_in_flight(self._hooks))

    def missing(self) -> list[torch.Tensor]:
        """Lists the parameters whose gradients were not submitted, in order."""
        count = self._library.ha_torch_hooks_missing(self._hooks, self._indices)
        return [self._params[index] for index in self._indices[:count]]

    def submit(self, param: torch.Tensor) -> None:
        """Submits a gradient that no hook has submitted, unless it is one for Python."""
        self._library.ha_torch_hooks_submit(self._hooks, self._index_of[param])

    def wait(self) -> Exception | None:
        """Waits until every submitted gradient has landed where its parameter's gradient is.

        Gives the error of the first reduction that failed, or None.
        """
        error = _Error()
        while self._library.ha_torch_hooks_wait(self._hooks, _SLICE_SECONDS, ctypes.byref(error)):
            pass
        if error.kind == 0:
            return None
        message, host, tensor, hint = (
            text.decode(errors="replace")
            for text in (error.message, error.host, error.tensor, error.hint)
        )
        return from_core(error.kind, message, error.culprit, host, tensor, error.collective, hint)

    def changed(self) -> torch.Tensor | None:
        """Gives the first parameter whose gradient the program has changed while it was reduced,
        since the last call; None: there is none.
        """
        index: int = self._library.ha_torch_hooks_changed(self._hooks)
        return None if index < 0 else self._params[index]

    def restart(self) -> None:
        """Begins a step: nothing has been accumulated."""
        self._library.ha_torch_hooks_restart(self._hooks)


def create(
    engine: Any,
    process_set: int,
    scaling: Scaling,
    params: Sequence[torch.Tensor],
    names: Sequence[str],
) -> GradientHooks | None:
    """Puts hooks on parameters; gives None if the C++ side is not there."""
    library = _ops.library()
    if library is None:
        return None
    return GradientHooks(library, engine, process_set, scaling, params, names)
