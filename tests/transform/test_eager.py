"""Without any transform: every verb runs as it is written."""

import numpy as np
import pytest

import dynemb_jax as dj
from tests.plugins import OPTIMIZERS
from tests.transform.steps import check_steps, train_step
from tests.twin import Twin, random_grads


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_eager_steps_equal_the_dictionary(optimizer):
    check_steps(train_step, Twin(optimizer=optimizer))


def test_every_verb_in_turn_equals_the_dictionary():
    twin = Twin(optimizer="adam_row")

    twin.train([1, 2, 3])
    twin.find([1, 9])
    twin.assign([9, 1], random_grads((2, 4)))
    twin.train([9, 9, 1])
    twin.erase([9, 2])
    twin.train([2, 9, 3])

    twin.check([1, 2, 3, 9])


def test_old_state_stays_readable_after_eager_steps():
    twin = Twin()
    old = twin.emb
    twin.train([1, 2])

    acts, _ = dj.lookup(old, np.array([1, 2]), train=False)
    twin.oracle.find([1, 2])

    np.testing.assert_allclose(acts.rows, twin.oracle.values([1, 2]), rtol=1e-5)
    twin.check()
