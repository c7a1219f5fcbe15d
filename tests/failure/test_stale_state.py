"""State that is old, forked, dropped or tampered with is an error, never a wrong table."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dynemb_jax as dj
from tests.twin import Twin, contents, create, keys, random_grads, token_of

GRADS = random_grads((2, 4))
MUTATIONS = {
    "lookup": lambda emb: dj.lookup(emb, np.array([50, 51]))[1],
    "assign": lambda emb: dj.assign(emb, "items", np.array([1]), np.zeros((1, 4), np.float32)),
    "erase": lambda emb: dj.erase(emb, "items", np.array([50])),
}
USES = MUTATIONS | {
    "lookup": lambda emb: dj.lookup(emb, np.array([60, 61]))[1],
}


def trained():
    twin = Twin()
    twin.train([1, 2])
    return twin


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("mutation", [*MUTATIONS, "update"])
def test_state_from_before_a_mutation_is_stale(mutation, use):
    twin = trained()
    acts = twin.lookup([1, 2])
    old = twin.emb
    new = dj.apply_gradients(old, acts, GRADS) if mutation == "update" else MUTATIONS[mutation](old)
    before = contents(new)

    with pytest.raises(dj.errors.StaleStateError):
        USES[use](old)

    assert contents(new) == before
    USES[use](new)


def test_an_update_from_before_an_update_is_stale():
    twin = trained()
    acts = twin.lookup([1, 2])
    old = twin.emb
    twin.update(acts, [1, 2], GRADS)

    with pytest.raises(dj.errors.StaleStateError):
        dj.apply_gradients(old, acts, GRADS)

    twin.check()


def test_two_different_lookups_of_one_state_are_a_fork():
    emb = create()
    dj.lookup(emb, np.array([1, 2]))

    with pytest.raises(dj.errors.StaleStateError):
        dj.lookup(emb, np.array([1, 3]))


def test_the_same_lookup_of_one_state_twice_is_a_replay():
    twin = Twin()

    first, _ = dj.lookup(twin.emb, np.array([1, 2, 1]))
    again, twin.emb = dj.lookup(twin.emb, np.array([1, 2, 1]))

    np.testing.assert_array_equal(first.rows, again.rows)
    twin.oracle.lookup([1, 2, 1])
    stats = dj.stats(twin.emb)["items"]
    assert (stats.rows, stats.ids, stats.inserted, stats.hits) == (2, 3, 2, 1)
    twin.train([1, 2])


def test_the_same_ids_in_another_order_are_a_fork():
    emb = create()
    dj.lookup(emb, np.array([1, 2]))

    with pytest.raises(dj.errors.StaleStateError):
        dj.lookup(emb, np.array([2, 1]))


def test_the_same_ids_with_other_padding_are_a_fork():
    emb, ids = create(), np.array([[1, 2, 3]])
    dj.lookup(emb, dj.Padded(ids, lengths=np.array([1])))

    with pytest.raises(dj.errors.StaleStateError):
        dj.lookup(emb, dj.Padded(ids, lengths=np.array([3])))


def test_the_same_ids_in_other_features_are_a_fork():
    emb = dj.create([dj.FeatureConfig(dj.TableConfig(n, 4)) for n in ("a", "b")])
    one, two = np.array([1, 2]), np.array([3, 4])
    dj.lookup(emb, [one, two])

    with pytest.raises(dj.errors.StaleStateError):
        dj.lookup(emb, [two, one])


def test_the_same_ids_in_fewer_features_are_a_fork():
    emb = dj.create([dj.FeatureConfig(dj.TableConfig(n, 4)) for n in ("a", "b")])
    dj.lookup(emb, [np.array([1, 2]), None])

    with pytest.raises(dj.errors.StaleStateError):
        dj.lookup(emb, [None, np.array([1, 2])])


def test_a_replayed_lookup_can_be_applied():
    twin = Twin(optimizer="adam_row")
    ids = np.array([1, 2, 1])
    dj.lookup(twin.emb, ids)

    acts, twin.emb = dj.lookup(twin.emb, ids)
    twin.oracle.lookup(ids)
    twin.update(acts, ids, random_grads((3, 4)))

    np.testing.assert_array_equal(dj.get(twin.emb, "items", [1, 2]).state["count"], [1, 1])
    np.testing.assert_allclose(
        dj.get(twin.emb, "items", [1, 2]).rows, twin.oracle.values([1, 2]), rtol=1e-5
    )


def test_a_replay_after_anything_else_is_stale():
    old = create()
    acts, emb = dj.lookup(old, np.array([1, 2]))
    dj.apply_gradients(emb, acts, GRADS)

    with pytest.raises(dj.errors.StaleStateError):
        dj.lookup(old, np.array([1, 2]))


def test_a_forked_program_is_stale():
    @jax.jit
    def fork(emb):
        left, _ = dj.lookup(emb, np.array([1, 2]))
        right, emb = dj.lookup(emb, np.array([3, 4]))
        return left.rows, right.rows, emb

    emb = create()

    def run():
        jax.block_until_ready(fork(emb))
        dj.stats(emb)  # a GPU tells later

    with pytest.raises(dj.errors.StaleStateError), dj.errors.typed():
        run()


def test_a_dropped_update_makes_the_kept_state_stale():
    twin = trained()
    acts = twin.lookup([1, 2])

    @jax.jit
    def dropping(emb, acts):
        dj.apply_gradients(emb, acts, GRADS)
        return emb

    kept = jax.block_until_ready(dropping(twin.emb, acts))

    with pytest.raises(dj.errors.StaleStateError):
        dj.lookup(kept, np.array([1]))


def test_an_optimizer_that_updates_the_token_is_noticed():
    params = {"w": jnp.ones(2), "emb": create()}
    # Large enough to show in a token of 30 bits that went through float32.
    tx = optax.sgd(1e4)
    grads = jax.tree.map(jnp.ones_like, params)

    with jax.numpy_dtype_promotion("standard"):
        updates, _ = tx.update(grads, tx.init(params), params)
        params = optax.apply_updates(params, updates)

    with pytest.raises(dj.errors.StaleStateError):
        dj.lookup(params["emb"], np.array([1]))


@pytest.mark.parametrize("change", [1, -1, 2**30])
def test_a_token_with_another_number_is_noticed(change):
    emb = jax.tree.map(lambda t: t + change, create())

    with pytest.raises(dj.errors.StaleStateError):
        dj.lookup(emb, np.array([1]))


@pytest.mark.parametrize(
    "leaf",
    [np.zeros(1, np.float32), np.zeros(2, np.int32), np.zeros((), np.int32), None],
    ids=["float", "long", "scalar", "none"],
)
def test_a_token_that_is_no_token_is_refused(leaf):
    treedef = jax.tree.structure(create())
    emb = jax.tree.unflatten(treedef, [leaf])

    with pytest.raises(dj.errors.DynembError):
        dj.lookup(emb, np.array([1]))


def test_resync_gives_the_present_state():
    twin = trained()
    old = twin.emb
    twin.train([5, 6])

    twin.emb = dj.resync(old)

    twin.train([1, 5])
    twin.check()


def test_resync_of_current_state_loses_nothing():
    twin = trained()

    twin.emb = dj.resync(dj.resync(twin.emb))

    twin.train([1, 9])
    twin.check()


def test_activations_from_before_a_resync_can_be_applied_after_it():
    twin = trained()
    acts = twin.lookup([1, 2])

    twin.emb = dj.resync(twin.emb)
    twin.update(acts, [1, 2], GRADS)

    twin.check()


def test_a_checkpointed_token_of_an_older_version_is_stale():
    twin = trained()
    saved = np.asarray(token_of(twin.emb)).copy()
    twin.train([1, 2])
    restored = jax.tree.unflatten(jax.tree.structure(twin.emb), [jnp.asarray(saved)])

    with pytest.raises(dj.errors.StaleStateError):
        dj.lookup(restored, np.array([7]))

    twin.check()


def test_state_of_one_collection_is_no_state_of_another():
    left, right = create(), create()
    acts, _ = dj.lookup(left, np.array([1, 2]))
    _, right = dj.lookup(right, np.array([3, 4]))

    with pytest.raises(dj.errors.DynembError):
        dj.apply_gradients(right, acts, GRADS)

    assert not dj.contains(right, "items", keys([1, 2])).any()


def test_a_failed_call_leaves_current_state_current():
    twin = trained()

    with pytest.raises(dj.errors.InputError):
        dj.lookup(twin.emb, np.ones(2))

    twin.train([1, 2])
    twin.check()
