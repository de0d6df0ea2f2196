"""Random configurations of all operators, element types, ranks and layouts against the oracle, errors included."""

from __future__ import annotations

import numpy as np
import oracle
import pytest
import torch
from cases import random_case
from tensors import arrange, assert_value, call, is_channels_last, to_array, to_tensor

SEEDS, CASES_PER_SEED = 100, 80  # 8,000 configurations


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_configurations(seed, device):
    rng = np.random.default_rng(seed)
    for i in range(CASES_PER_SEED):
        drawn = random_case(rng)
        try:
            check(drawn, device)
        except Exception as error:
            raise AssertionError(f"configuration {i} of seed {seed}: {drawn}") from error


def check(drawn, device: str) -> None:
    case, arrays = drawn.case, drawn.case.inputs(drawn.dtype)
    x, *scalars = (to_tensor(a, device) for a in arrays)
    x = arrange(x, drawn.layout)
    more = {"return_indices": True} if case.operator == "MaxPool" else {}
    try:
        exact = oracle.FORWARD[case.operator](*arrays, **case.attributes)
    except ValueError as rule:
        with pytest.raises(ValueError, match=f"^{case.operator}: "):
            pytest.fail(f"{rule}, but got {call(case, [x, *scalars], **more)}")
        return
    y = call(case, [x, *scalars])
    assert_value(case, drawn.dtype, y, exact[0] if more else exact)
    dense = y.movedim(1, -1) if is_channels_last(x) else y
    assert dense.is_contiguous()
    if more:
        same, indices = call(case, [x, *scalars], **more)
        assert torch.equal(same.nan_to_num(), y.nan_to_num())
        np.testing.assert_array_equal(to_array(indices), exact[1])


def test_the_generator_reaches_everything():
    """Every operator in every one of its element types, ranks 1 to 4, and enough of what is refused."""
    drawn = [random_case(np.random.default_rng(seed)) for seed in range(2000)]
    seen = {(d.case.operator, d.dtype) for d in drawn}
    assert all((d.case.operator, dtype) in seen for d in drawn for dtype in d.case.dtypes)
    assert {len(d.case.shape) - 2 for d in drawn} >= {1, 2, 3, 4}
    assert 0.15 < sum(is_refused(d) for d in drawn[:500]) / 500 < 0.4


def is_refused(drawn) -> bool:
    try:
        oracle.FORWARD[drawn.case.operator](*drawn.case.inputs(drawn.dtype), **drawn.case.attributes)
    except ValueError:
        return True
    return False
