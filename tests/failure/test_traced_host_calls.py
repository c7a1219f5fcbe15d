"""What belongs on the host says so inside of jit; what cannot be meant is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynemb_jax as dj
from tests.twin import create

HOST_CALLS = {
    "stats": lambda emb: dj.stats(emb),
    "get": lambda emb: dj.get(emb, "items", np.array([1])),
    "contains": lambda emb: dj.contains(emb, "items", np.array([1])),
    "erase_if": lambda emb: dj.erase_if(emb, "items", score_below=1),
    "shrink": lambda emb: dj.shrink(emb),
    "clear": lambda emb: dj.clear(emb, "items"),
    "drain_evicted": lambda emb: dj.drain_evicted(emb, "items"),
    "resync": lambda emb: dj.resync(emb),
    "close": lambda emb: dj.close(emb),
    "create": lambda _: create(4),
}


@pytest.mark.parametrize("call", HOST_CALLS)
def test_a_host_call_under_jit_is_refused(call):
    def traced(emb):
        HOST_CALLS[call](emb)
        return emb

    with pytest.raises(dj.errors.InputError, match="outside of jit"):
        jax.jit(traced)(create(4))


def test_resync_outruns_programs_that_are_still_queued():
    emb = create(4)
    queued = dj.lookup(emb, np.array([1]))[1]

    fresh = dj.resync(queued)

    with pytest.raises(dj.errors.StaleStateError):
        dj.lookup(queued, np.array([2]))
    _, fresh = dj.lookup(fresh, np.array([3]))
    np.testing.assert_array_equal(dj.contains(fresh, "items", np.array([1, 2, 3])), [1, 0, 1])


def test_find_refuses_a_token_that_the_tables_never_had(platform):
    if platform == "gpu":
        pytest.skip("finds on a GPU take any token")
    emb = create(4)

    with pytest.raises(dj.errors.StaleStateError):
        dj.lookup(jax.tree.map(jnp.zeros_like, emb), np.array([1]), train=False)


def test_a_program_for_several_devices_is_refused_by_name():
    emb = create(4)
    mesh = jax.sharding.AbstractMesh((2,), ("data",))
    spec = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    token = jax.ShapeDtypeStruct((1,), np.int32, sharding=spec)
    ids = jax.ShapeDtypeStruct((4,), np.int32, sharding=spec)
    state = jax.tree.unflatten(jax.tree.structure(emb), [token])

    with pytest.raises(NotImplementedError, match="2 devices"):
        jax.jit(dj.lookup).trace(state, ids).lower(lowering_platforms=("cpu",))


@pytest.mark.parametrize(
    "options",
    [
        {"learning_rate": float("nan")},
        {"learning_rate": "fast"},
        {"learning_rate": {"items": 0.1}},
        {"learning_rate": np.ones(3, np.float32)},
        {"learning_rate": lambda step: None},
        {"step": -1},
        {"step": 1.5},
        {"step": 2**31},
        {"step": "first"},
    ],
)
def test_a_rate_or_step_that_is_none_is_refused(options):
    acts, emb = dj.lookup(create(4), np.array([1]))

    with pytest.raises(dj.errors.InputError, match=next(iter(options))):
        dj.apply_gradients(emb, acts, np.ones((1, 4), np.float32), **options)


def test_a_gradient_for_a_feature_that_was_not_looked_up_is_refused():
    emb = dj.create([dj.FeatureConfig(dj.TableConfig(name, 4)) for name in ("a", "b")])
    acts, emb = dj.lookup(emb, [np.array([1]), None])
    grad = np.ones((1, 4), np.float32)

    with pytest.raises(dj.errors.InputError, match="not looked up"):
        dj.apply_gradients(emb, acts, [grad, grad])


@pytest.mark.parametrize("train", ["False", 0, None])
def test_train_is_a_boolean(train):
    with pytest.raises(dj.errors.InputError, match="train"):
        dj.lookup(create(4), np.array([1]), train=train)


def test_initial_rows_beyond_the_budget_are_a_mistake_of_the_configuration():
    with pytest.raises(dj.errors.ConfigError, match="initial_rows"):
        create(64, initial_rows=10**6, max_bytes=5000)
