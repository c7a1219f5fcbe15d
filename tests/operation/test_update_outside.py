"""Tables whose rule XLA runs, beside others: one update, exact, ordered by the token."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dynemb_jax as dj
from tests.twin import Twin, assert_close, create, random_grads

ADAM = optax.adam(0.01)
RULES = {
    "xla": dj.optimizers.from_optax(ADAM, count="row"),
    "engine": dj.optimizers.adam(0.01, bias_correction="row"),
}
KNOWN = np.arange(12)


def pair(combiner=None, **config):
    """Two tables that differ in who runs their rule, each with two features."""
    features = {}
    for name, rule in RULES.items():
        first = dj.initializers.constant(0.5)
        one = dj.TableConfig(name, 4, optimizer=rule, initializer=first, **config)
        features[name] = [dj.FeatureConfig(one), dj.FeatureConfig(one, combiner)]
    return dj.create(features)


def both(value):
    return dict.fromkeys(RULES, value)


def check_equal(emb):
    """Rows and state of the two tables."""
    xla, engine = (dj.get(emb, name, KNOWN) for name in ("xla", "engine"))
    np.testing.assert_array_equal(xla.found, engine.found)
    assert_close(xla.rows, engine.rows)
    for part in ("mu", "nu", "count"):
        assert_close(xla.state[part], engine.state[part], what=part)
    stats = dj.stats(emb)
    assert stats["xla"].updates == stats["engine"].updates
    assert stats["xla"].updated_rows == stats["engine"].updated_rows


ids = st.lists(st.integers(0, 11), min_size=6, max_size=6)
lengths = st.lists(st.integers(0, 3), min_size=2, max_size=2)


@functools.partial(jax.jit, donate_argnames=("emb",))
def two_lookups(emb, batches, weights):
    acts = []
    for plain, bags, of_bags in batches:
        padded = dj.Padded(bags, lengths=of_bags, weights=weights)
        one, emb = dj.lookup(emb, both([plain, padded]))
        acts.append(one)
    grads = [jax.tree.map(lambda rows: jnp.sin(rows + 1.0), one.rows) for one in acts]
    return dj.apply_gradients(emb, acts, grads)


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_generated_batches_move_rows_as_the_engine_does(combiner):
    emb = pair(combiner)  # one for all examples, since each compiles its own programs
    weights = jnp.array([[1.0, -0.5, 2.0], [0.5, 3.0, 1.0]])

    @given(steps=st.lists(st.tuples(ids, ids, lengths, ids, ids, lengths), min_size=1, max_size=3))
    def law(steps):
        nonlocal emb
        for name in RULES:
            emb = dj.clear(emb, name)
        for step in steps:
            parts = [np.array(part, np.int32) for part in step]
            batches = [(a, b.reshape(2, 3), c) for a, b, c in (parts[:3], parts[3:])]
            emb = two_lookups(emb, batches, weights)
        check_equal(emb)

    law()


def test_micro_batches_that_scan_has_stacked_are_one_update():
    emb = pair()
    stacked = jnp.array([[1, 2, 2], [2, 3, 9], [9, 9, 9]])

    @jax.jit
    def step(emb):
        def body(emb, batch):
            acts, emb = dj.lookup(emb, both([batch, None]))
            return emb, acts

        emb, acts = jax.lax.scan(body, emb, stacked)
        return dj.apply_gradients(emb, acts, jax.tree.map(jnp.cos, acts.rows))

    emb = step(emb)

    check_equal(emb)
    np.testing.assert_array_equal(dj.get(emb, "xla", [1, 2, 3, 9]).state["count"], 1)


def test_mapped_gradients_are_one_update():
    emb = pair()
    mapped = jnp.array([[1, 2, 2], [2, 3, 9]])

    @jax.jit
    def step(emb):
        def one(ids):
            return dj.lookup(emb, both([ids, None]))

        acts, new = jax.vmap(one, out_axes=(0, None))(mapped)
        grads = jax.tree.map(jnp.cos, acts.rows)
        return jax.vmap(lambda a, g: dj.apply_gradients(new, a, g), out_axes=None)(acts, grads)

    check_equal(step(emb))


def test_a_branch_that_is_not_taken_moves_nothing():
    emb = pair()
    acts, emb = dj.lookup(emb, both([KNOWN, None]))
    grads = jax.tree.map(jnp.ones_like, acts.rows)

    @jax.jit
    def step(emb, acts, grads, good):
        return jax.lax.cond(good, lambda e: dj.apply_gradients(e, acts, grads), lambda e: e, emb)

    emb = step(emb, acts, grads, False)
    for name in RULES:
        np.testing.assert_array_equal(dj.get(emb, name, KNOWN).rows, 0.5)
    emb = step(emb, acts, grads, True)

    check_equal(emb)
    assert dj.stats(emb)["xla"].updates == 1


def test_refused_ids_take_no_gradient():
    emb = pair(max_bytes=1500, on_full="drop")
    wide = np.arange(200, dtype=np.int32)

    acts, emb = dj.lookup(emb, both([wide, None]))
    emb = dj.apply_gradients(emb, acts, jax.tree.map(jnp.ones_like, acts.rows))

    stats = dj.stats(emb)["xla"]
    assert 0 < stats.refused["budget"] < 200
    assert stats.updated_rows == stats.inserted
    assert stats.rows == dj.contains(emb, "xla", wide).sum()


def test_bounded_tables_move_the_rows_that_they_pin():
    rule = dj.optimizers.from_optax(optax.sgd(0.5))
    first = dj.initializers.constant(0.0)
    emb = create(optimizer=rule, initializer=first, eviction=dj.eviction.lru(max_rows=4))
    one, emb = dj.lookup(emb, np.array([1, 2]))
    two, emb = dj.lookup(emb, np.array([2, 3]))

    emb = dj.apply_gradients(emb, [one, two], [np.ones((2, 4), np.float32)] * 2)
    _, emb = dj.lookup(emb, np.array([4, 5]))

    got = dj.get(emb, "items", np.array([2, 3, 4, 5]))
    assert got.found.all()
    np.testing.assert_array_equal(got.rows[:, 0], [-1, -0.5, 0, 0])


def test_no_ids_are_no_rows():
    emb = pair()
    acts, emb = dj.lookup(emb, both([np.zeros(0, np.int32), None]))

    emb = dj.apply_gradients(emb, acts, jax.tree.map(jnp.ones_like, acts.rows))

    assert dj.stats(emb)["xla"].updated_rows == 0


def test_an_update_of_both_kinds_of_tables_is_one_step_and_one_version():
    emb = pair()
    acts, emb = dj.lookup(emb, both([KNOWN, None]))
    before = int(emb.token[0])

    emb = dj.apply_gradients(emb, acts, jax.tree.map(jnp.ones_like, acts.rows))

    assert int(emb.token[0]) == before + 1


def test_a_stale_state_moves_no_row_of_any_table():
    emb = pair()
    acts, emb = dj.lookup(emb, both([KNOWN, None]))
    grads = jax.tree.map(jnp.ones_like, acts.rows)
    newer = dj.assign(emb, "engine", [1], np.zeros((1, 4), np.float32))

    with pytest.raises(dj.errors.StaleStateError):
        dj.apply_gradients(emb, acts, grads)

    np.testing.assert_array_equal(dj.get(newer, "xla", KNOWN).rows, 0.5)
    assert dj.stats(newer)["xla"].updates == dj.stats(newer)["engine"].updates == 0
    check_equal(dj.apply_gradients(dj.assign(newer, "xla", [1], np.zeros((1, 4))), acts, grads))


def test_keys_that_were_erased_since_are_found_stale():
    emb = pair()
    acts, emb = dj.lookup(emb, both([KNOWN, None]))
    emb = dj.erase(emb, "xla", [1])

    with pytest.raises(dj.errors.StaleStateError, match="erased"):
        dj.apply_gradients(emb, acts, jax.tree.map(jnp.ones_like, acts.rows))


def test_a_dropped_update_is_found_stale():
    emb = pair()

    @jax.jit
    def forget(emb):
        acts, emb = dj.lookup(emb, both([KNOWN, None]))
        dj.apply_gradients(emb, acts, jax.tree.map(jnp.ones_like, acts.rows))
        return emb

    emb = forget(emb)

    with pytest.raises(dj.errors.StaleStateError):
        dj.lookup(emb, both([KNOWN, None]))


def test_a_learning_rate_from_outside_is_refused():
    emb = pair()
    acts, emb = dj.lookup(emb, both([KNOWN, None]))

    with pytest.raises(dj.errors.InputError, match=r"'xla'.*inside of its optax transformation"):
        dj.apply_gradients(emb, acts, jax.tree.map(jnp.ones_like, acts.rows), learning_rate=0.1)


def test_a_learning_rate_is_fine_where_no_such_table_is_looked_up():
    emb = pair()
    acts, emb = dj.lookup(emb, {"xla": [None, None], "engine": [KNOWN, None]})

    emb = dj.apply_gradients(emb, acts, jax.tree.map(jnp.ones_like, acts.rows), learning_rate=0.1)

    assert (dj.get(emb, "engine", KNOWN).rows < 0.5).all()


def test_an_untrainable_table_keeps_its_rows():
    emb = pair(trainable=False)
    acts, emb = dj.lookup(emb, both([KNOWN, None]))

    emb = dj.apply_gradients(emb, acts, jax.tree.map(jnp.ones_like, acts.rows))

    for name in RULES:
        np.testing.assert_array_equal(dj.get(emb, name, KNOWN).rows, 0.5)


def test_a_hot_key_takes_one_step_by_the_exact_sum():
    twin = Twin(optimizer="from_optax_momentum")
    hot = np.full(20_000, 7)
    hot[::100] = 8

    twin.train(hot, grads=np.full((20_000, 4), 0.1, np.float32))

    twin.check()


def test_padding_looks_like_a_new_row_and_makes_no_nan():
    # 0 / 0, were the state of padding 0.
    divide = optax.GradientTransformation(jnp.ones_like, lambda g, s, w: (-g / s, s))
    emb = create(optimizer=dj.optimizers.from_optax(divide))
    acts, emb = dj.lookup(emb, np.array([1, 1, 1, 1]))

    with jax.debug_nans(True):
        emb = dj.apply_gradients(emb, acts, np.ones((4, 4), np.float32))

    assert_close(dj.get(emb, "items", [1]).rows, acts.rows[:1] - 4)


def test_an_update_adds_up_the_gradients_of_features_that_share_the_table():
    emb = pair("mean")
    bags = dj.Padded(np.array([[2, 3]]), [2], weights=np.array([[1.0, 3.0]], np.float32))

    acts, emb = dj.lookup(emb, both([np.array([1, 2]), bags]))
    grads = both([random_grads((2, 4)), random_grads((1, 4), 1)])
    emb = dj.apply_gradients(emb, acts, grads)

    check_equal(emb)
    np.testing.assert_array_equal(dj.get(emb, "xla", [1, 2, 3]).state["count"], 1)
