"""A GPU that the host plays, as a device of TensorFlow's: `install()`."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any

import tensorflow as tf
from fake_cuda import HERE, bridge, plugin

from horoacc.tensorflow import _ops

DEVICE = "/device:FAKE_GPU:0"


def libraries() -> Path:
    """Builds the fake GPU and TensorFlow's side of it, unless that has been done.

    Returns:
        TensorFlow's side.
    """
    flags = [*tf.sysconfig.get_compile_flags()[1:], "-isystem", tf.sysconfig.get_include(),
             *tf.sysconfig.get_link_flags()]  # fmt: skip
    kept = [flag for flag in flags if not flag.startswith(("--std", "-std"))]
    return bridge(HERE / "fake_tensorflow.cc", tf.__version__, kept)


class FakeDevice:
    """TensorFlow's device with the fake GPU of this process."""

    def __init__(self) -> None:
        """Loads it, which works only before TensorFlow has looked for devices."""
        side = libraries()
        self._cuda = ctypes.CDLL(str(plugin()), mode=ctypes.RTLD_GLOBAL)
        self._cuda.fake_cuda_unpinned_bytes.restype = ctypes.c_size_t
        self._own = tf.load_op_library(str(side))
        assert tf.config.list_physical_devices("FAKE_GPU"), "TensorFlow knows its devices already"
        _ops.run_on("FAKE_GPU")

    @property
    def unpinned_bytes(self) -> int:
        """Bytes that the plug-in copied from or to memory that was not pinned."""
        return int(self._cuda.fake_cuda_unpinned_bytes())

    def twice(self, tensor: Any) -> Any:
        """Doubles a tensor on the GPU, some time later on its stream."""
        with tf.device(DEVICE):
            return self._own.fake_twice(tensor)


@functools.cache
def install() -> FakeDevice:
    """Gives this process a fake GPU.

    Returns:
        The same one each time.
    """
    return FakeDevice()
