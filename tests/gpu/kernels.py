"""The kernels of the CUDA plug-in, called on torch's tensors through the plug-in's C table."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from pathlib import Path

import torch

TYPES = {
    torch.bool: 0, torch.uint8: 1, torch.int8: 2, torch.int16: 3, torch.int32: 4, torch.int64: 5,
    torch.float16: 6, torch.bfloat16: 7, torch.float32: 8, torch.float64: 9,
}  # fmt: skip
_CONTRACT = Path(__file__).resolve().parents[2] / "csrc/execute/cuda/cuda_plugin.h"
_VERSION = re.compile(r"#define HA_CUDA_PLUGIN_VERSION (\d+)")
OPS = {"average": 0, "sum": 1, "min": 3, "max": 4, "product": 5}


class _Error(ctypes.Structure):
    _fields_ = [("message", ctypes.c_char * 512)]


class _Reduce(ctypes.Structure):
    _fields_ = [
        ("sources", ctypes.c_void_p), ("destinations", ctypes.c_void_p),
        ("source_count", ctypes.c_size_t), ("destination_count", ctypes.c_size_t),
        ("count", ctypes.c_size_t), ("type", ctypes.c_int), ("op", ctypes.c_int),
        ("pre", ctypes.c_double), ("post", ctypes.c_double), ("divisor", ctypes.c_double),
    ]  # fmt: skip


class _Tensor(ctypes.Structure):
    _fields_ = [("source", ctypes.c_void_p), ("to", ctypes.c_void_p), ("count", ctypes.c_size_t)]


class _Pack(ctypes.Structure):
    _fields_ = [
        ("tensors", ctypes.POINTER(_Tensor)), ("tensor_count", ctypes.c_size_t),
        ("from_type", ctypes.c_int), ("to_type", ctypes.c_int), ("factor", ctypes.c_double),
        ("nonfinite", ctypes.c_void_p),
    ]  # fmt: skip


_CALL = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(_Error)
)


class _Table(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint),
        ("open", ctypes.CFUNCTYPE(
            ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), ctypes.c_int, ctypes.POINTER(_Error))),
        ("close", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
        ("reduce", _CALL),
        ("pack", _CALL),
    ]  # fmt: skip


def _pointers(tensors: Sequence[torch.Tensor]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(tensors))(*(tensor.data_ptr() for tensor in tensors))


class Kernels:
    """The plug-in on one GPU; calls go to torch's current stream and wait for nothing."""

    def __init__(self, library: Path, device: int = 0) -> None:
        loaded = ctypes.CDLL(str(library))
        version = int(_VERSION.findall(_CONTRACT.read_text())[0])
        entry = getattr(loaded, f"horoacc_cuda_plugin_v{version}")
        entry.restype = ctypes.POINTER(_Table)
        self._table = entry().contents
        assert self._table.version == version
        self._error = _Error()
        self._self = ctypes.c_void_p()
        self._check(self._table.open(ctypes.byref(self._self), device, ctypes.byref(self._error)))

    def close(self) -> None:
        """Waits for the GPU and gives everything back."""
        self._table.close(self._self)

    def reduce(
        self,
        sources: Sequence[torch.Tensor],
        destinations: Sequence[torch.Tensor],
        op: str = "sum",
        pre: float = 1.0,
        post: float = 1.0,
    ) -> None:
        """Reduces flat tensors of one length and type."""
        given, taken = _pointers(sources), _pointers(destinations)
        divisor = float(len(sources)) if op == "average" else 1.0
        first = sources[0]
        job = _Reduce(
            ctypes.cast(given, ctypes.c_void_p), ctypes.cast(taken, ctypes.c_void_p),
            len(sources), len(destinations), first.numel(), TYPES[first.dtype], OPS[op],
            pre, post, divisor,
        )  # fmt: skip
        self._run(self._table.reduce, job)

    def batch(
        self, sources: Sequence[torch.Tensor], to: Sequence[torch.Tensor]
    ) -> ctypes.Array[_Tensor]:
        """The table of a batch; `sources` and `to` must outlive it."""
        pairs = zip(sources, to, strict=True)
        return (_Tensor * len(sources))(
            *(_Tensor(a.data_ptr(), b.data_ptr(), a.numel()) for a, b in pairs)
        )

    def pack(
        self,
        table: ctypes.Array[_Tensor],
        from_type: torch.dtype,
        to_type: torch.dtype,
        factor: float = 1.0,
        nonfinite: torch.Tensor | None = None,
    ) -> None:
        """Copies a batch in one launch."""
        counter = nonfinite.data_ptr() if nonfinite is not None else None
        job = _Pack(table, len(table), TYPES[from_type], TYPES[to_type], factor, counter)
        self._run(self._table.pack, job)

    def _run(self, call: object, job: ctypes.Structure) -> None:
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self._check(
            call(self._self, stream, ctypes.addressof(job), ctypes.byref(self._error))  # type: ignore[operator]
        )

    def _check(self, code: int) -> None:
        if code != 0:
            raise RuntimeError(self._error.message.decode())
