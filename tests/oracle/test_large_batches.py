"""The dictionary for large batches equals the dictionary."""

import numpy as np
import pytest

from tests.oracle.dict_table import DictTable
from tests.oracle.large_batches import LargeBatchTable
from tests.oracle.row_init import Uniform
from tests.plugins import OPTIMIZERS


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_equal_ids_taken_together_give_the_same_rows_state_and_counters(name):
    rng = np.random.default_rng(0)
    options = {"optimizer": OPTIMIZERS[name][1], "first_rows": Uniform(), "seed": 3}
    one, large = DictTable("items", 5, **options), LargeBatchTable("items", 5, **options)

    for size in (40, 0, 1, 300):
        ids = rng.integers(-20, 20, size)
        grads = rng.integers(-8, 9, (size, 5)).astype(np.float32)
        np.testing.assert_array_equal(large.lookup(ids), one.lookup(ids))
        one.apply(ids, grads)
        large.apply(ids, grads)

    known = np.arange(-25, 25)
    np.testing.assert_array_equal(large.values(known), one.values(known))
    for part, value in one.state(known).items():
        np.testing.assert_array_equal(large.state(known)[part], value)
    assert large.counters == one.counters
