"""HOROACC_CHECK_NUMERICS finds infinite and NaN elements (row 13)."""

from __future__ import annotations

import numpy as np
import pytest

import horoacc as hvd

CHECKED = {"HOROACC_CHECK_NUMERICS": "1"}


@pytest.mark.ranks(2, 4, 8, env=CHECKED)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64"])
@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_a_bad_element_is_an_error_on_all_ranks(ranks: int, dtype: str, value: str) -> None:
    array = np.ones(10_000, dtype)
    if hvd.rank() == 1:
        array[9_999] = float(value)
    with pytest.raises((hvd.errors.Mismatch, hvd.errors.InvalidArgument)) as caught:
        hvd.allreduce(array, op=hvd.Sum, name="gradient")
    kind = hvd.errors.InvalidArgument if hvd.rank() == 1 else hvd.errors.Mismatch
    assert caught.type is kind
    text = str(caught.value)
    assert "element 9999 of 10000 is infinite or not a number" in text
    if hvd.rank() != 1:
        assert "tensor 'allreduce.gradient' on rank 1" in text
        assert (caught.value.culprit, caught.value.tensor) == (1, "allreduce.gradient")
    # The job goes on.
    assert hvd.allreduce(np.ones(3, dtype), op=hvd.Sum).tolist() == [ranks] * 3


@pytest.mark.ranks(2, 4, 8, env=CHECKED)
def test_good_numbers_pass(ranks: int) -> None:
    largest = np.finfo(np.float32).max
    values = np.array([largest, -largest, np.finfo(np.float32).smallest_subnormal, 0], np.float32)
    if hvd.rank() != 0:
        values[:] = 0
    assert hvd.allreduce(values, op=hvd.Sum).tolist()[0] == largest
    assert hvd.allreduce(np.full(5, -1), op=hvd.Sum).tolist() == [-ranks] * 5


@pytest.mark.ranks(2, 4, 8)
def test_off_by_default(ranks: int) -> None:
    array = np.full(3, np.nan, np.float32)
    assert np.isnan(hvd.allreduce(array, op=hvd.Sum)).all()
