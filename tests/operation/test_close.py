"""Closing: memory goes, and later use is an error with a name."""

import numpy as np
import pytest

import dynemb_jax as dj
from tests.twin import Twin, create

USES = {
    "lookup": lambda e, a: dj.lookup(e, np.array([1])),
    "find": lambda e, a: dj.lookup(e, np.array([1]), train=False),
    "update": lambda e, a: dj.apply_gradients(e, a, np.ones((1, 4), np.float32)),
    "assign": lambda e, a: dj.assign(e, "items", np.array([1]), np.ones((1, 4), np.float32)),
    "erase": lambda e, a: dj.erase(e, "items", np.array([1])),
    "stats": lambda e, a: dj.stats(e),
    "contains": lambda e, a: dj.contains(e, "items", np.array([1])),
    "get": lambda e, a: dj.get(e, "items", np.array([1])),
    "resync": lambda e, a: dj.resync(e),
}


@pytest.mark.parametrize("use", USES)
def test_every_use_after_close_is_a_closed_error(use):
    acts, emb = dj.lookup(create(), np.array([1]))

    dj.close(emb)

    with pytest.raises(dj.errors.ClosedError):
        USES[use](emb, acts)


def test_closing_one_collection_leaves_another_of_the_same_name():
    twin = Twin()
    twin.train([1])

    dj.close(create(4))

    twin.train([1, 2])
    twin.check()


def test_a_collection_created_after_close_starts_empty():
    twin = Twin()
    twin.train([1])

    dj.close(twin.emb)
    again = Twin()

    again.check([1])
    again.train([1])
    again.check()
