"""Saves and loads estimators and models, by Spark's `save`, `load` and pipelines."""

from __future__ import annotations

import base64
from typing import Any

import cloudpickle
from pyspark.ml.util import (
    DefaultParamsReader,
    DefaultParamsWriter,
    MLReadable,
    MLReader,
    MLWritable,
    MLWriter,
)

_NOT_SAVED = ("store", "backend")
"""Where data lie and who trains belong to a session."""


class Saved(MLReadable, MLWritable):  # type: ignore[misc]
    """A class whose parameters are saved; cloudpickle must know how to pickle them."""

    def write(self) -> Any:
        """Gives a writer: `model.write().overwrite().save(path)`."""
        return _Writer(self)

    @classmethod
    def read(cls) -> Any:
        """Gives a reader."""
        return _Reader(cls)

    def packed(self, name: str, value: Any) -> Any:
        """Gives what is pickled for a parameter."""
        return value

    @classmethod
    def unpacked(cls, name: str, value: Any, others: dict[str, Any]) -> Any:
        """Undoes `packed`; `others` are the parameters as they were pickled."""
        return value


class _Writer(MLWriter):  # type: ignore[misc]
    def __init__(self, instance: Any) -> None:
        super().__init__()
        self._instance = instance

    def saveImpl(self, path: str) -> None:  # noqa: N802
        own = self._instance
        # In one pickle: an optimizer refers to its model's parameters.
        values = {
            param.name: own.packed(param.name, value)
            for param, value in own._paramMap.items()
            if param.name not in _NOT_SAVED
        }
        text = base64.b64encode(cloudpickle.dumps(values)).decode()
        session = self.sparkSession
        bare = type(own)()
        bare._resetUid(own.uid)
        bare._defaultParamMap.clear()
        DefaultParamsWriter.saveMetadata(
            bare, path, session, extraMetadata={"horoacc": text}, paramMap={}
        )


class _Reader(MLReader):  # type: ignore[misc]
    def __init__(self, cls: Any) -> None:
        super().__init__()
        self._cls = cls

    def load(self, path: str) -> Any:
        found = DefaultParamsReader.loadMetadata(path, self.sparkSession)
        values = cloudpickle.loads(base64.b64decode(found["horoacc"]))
        made = self._cls()
        made._resetUid(found["uid"])
        made._set(
            **{name: self._cls.unpacked(name, value, values) for name, value in values.items()}
        )
        return made
