"""Mistakes with the module of Linen have an error that says what to do."""

import jax
import jax.numpy as jnp
import pytest

import dynemb_jax as dj
from tests.flax.reference import FEATURES, LABELS, ids
from tests.twin import create

pytest.importorskip("flax")
import flax.linen as nn
import optax

import dynemb_jax.flax.linen as djlinen
from tests.flax.test_linen import Model, make, train_step


@pytest.fixture
def made():
    model, (params, _, tables) = make()
    return model, {"params": params, "dynemb": tables}


def lookup(model, variables, turn=0):
    """Half a step: the collection after a training lookup, and gradients of its taps."""
    taps = djlinen.make_taps(model, variables, ids(turn))
    _, changed = model.apply({**variables, "dynemb_taps": taps}, ids(turn), mutable="dynemb")
    return changed["dynemb"], taps


def test_a_lookup_without_taps_is_refused(made):
    model, variables = made

    with pytest.raises(dj.errors.InputError, match=r"without taps.*make_taps"):
        model.apply(variables, ids(0), mutable="dynemb")


@pytest.mark.parametrize("mutable", [False, "batch_stats"])
def test_a_collection_that_is_not_mutable_is_refused(made, mutable):
    model, variables = made

    with pytest.raises(dj.errors.InputError, match='mutable="dynemb"'):
        model.apply(variables, ids(0), mutable=mutable)


@pytest.mark.parametrize("train", [True, False])
def test_a_collection_left_out_is_refused(made, train):
    model, variables = made

    with pytest.raises(dj.errors.InputError, match='no collection "dynemb"'):
        model.apply({"params": variables["params"]}, ids(0), train, mutable="dynemb")


def test_a_forgotten_update_is_noticed_by_the_next_step(made):
    model, variables = made
    tables, _ = lookup(model, variables)

    with pytest.raises(dj.errors.StaleStateError, match=r"embed: .*apply_gradients"):
        djlinen.make_taps(model, {**variables, "dynemb": tables}, ids(1))


def test_a_forgotten_update_is_noticed_by_the_next_lookup(made):
    model, variables = made
    tables, taps = lookup(model, variables)
    later = {**variables, "dynemb": tables, "dynemb_taps": taps}

    with pytest.raises(dj.errors.StaleStateError, match="apply_gradients"):
        model.apply(later, ids(0), mutable="dynemb")


class Two(nn.Module):
    left: djlinen.DynamicEmbed
    right: djlinen.DynamicEmbed

    def __call__(self, ids):
        return self.left(ids)["item"] + self.right(ids)["item"]


def test_two_modules_on_one_embeddings_are_told_to_be_one():
    emb = dj.create(FEATURES)
    model = Two(djlinen.DynamicEmbed(emb), djlinen.DynamicEmbed(emb))
    variables = model.init(jax.random.key(0), ids(0))

    with pytest.raises(dj.errors.StaleStateError, match=r"left and right.*make one DynamicEmbed"):
        djlinen.make_taps(model, variables, ids(0))

    assert dj.stats(emb)["items"].lookups == 0


def test_one_module_in_two_places_works():
    shared = djlinen.DynamicEmbed(dj.create(FEATURES))
    model = Two(shared, shared)
    variables = model.init(jax.random.key(0), ids(0))

    taps = djlinen.make_taps(model, variables, ids(0))
    _, changed = model.apply({**variables, "dynemb_taps": taps}, ids(0), mutable="dynemb")
    tables = djlinen.apply_gradients(changed["dynemb"], taps)

    ((name, part),) = tables.items()
    assert dj.stats(getattr(model, name).embeddings(part))["items"].updates == 1


def test_a_discarded_step_is_no_forgotten_update(made):
    model, variables = made
    tables, _ = lookup(model, variables)

    tables = djlinen.discard(tables)

    tables = djlinen.apply_gradients(*lookup(model, {**variables, "dynemb": tables}))
    assert dj.stats(model.embed.embeddings(tables["embed"]))["items"].updates == 1


def test_gradients_that_are_not_of_taps_are_refused(made):
    model, variables = made
    tables, taps = lookup(model, variables)

    with pytest.raises(dj.errors.InputError, match="Dense_0/kernel"):
        djlinen.apply_gradients(tables, variables["params"])
    with pytest.raises(dj.errors.InputError, match="embed: 1 training lookups"):
        djlinen.apply_gradients(tables, {})
    djlinen.apply_gradients(tables, taps)


def test_a_collection_that_is_another_is_refused(made):
    _, variables = made

    for wrong in (variables, variables["params"], None, {}):
        with pytest.raises(dj.errors.InputError, match=r'variables\["dynemb"\]'):
            djlinen.apply_gradients(wrong, {})


def test_an_optimizer_of_all_variables_is_noticed(made):
    model, variables = made
    tx = optax.sgd(1.0)
    grads = jax.tree.map(jnp.ones_like, variables)

    with jax.numpy_dtype_promotion("standard"):
        updates, _ = tx.update(grads, tx.init(variables), variables)
        variables = optax.apply_updates(variables, updates)

    with pytest.raises(dj.errors.StaleStateError, match="resync"):
        djlinen.apply_gradients(*lookup(model, variables))


def test_a_token_of_another_type_is_noticed(made):
    model, variables = made
    variables = jax.tree.map(lambda x: x.astype(float), variables)

    with pytest.raises(dj.errors.StaleStateError, match=r'variables\["params"\] only'):
        lookup(model, variables)
    with pytest.raises(dj.errors.StaleStateError, match=r'variables\["params"\] only'):
        model.apply(variables, ids(0), train=False)


def test_a_collection_from_before_a_step_is_stale():
    model, state = make()
    train_step(model, state, ids(0), LABELS[0])

    with pytest.raises(dj.errors.StaleStateError):
        train_step(model, state, ids(1), LABELS[1])


def test_features_in_the_place_of_tables_are_refused():
    with pytest.raises(dj.errors.InputError, match=r"dynemb_jax.create\(features\).*outside"):
        Model(djlinen.DynamicEmbed(FEATURES))


def test_embeddings_of_other_tables_are_refused(made):
    model, _ = made

    with pytest.raises(dj.errors.InputError, match="other tables"):
        model.embed.variables_of(create())


def test_the_whole_collection_is_no_part_of_one_module(made):
    model, variables = made

    with pytest.raises(dj.errors.InputError, match=r'tables\["embed"\]'):
        model.embed.embeddings(variables["dynemb"])


def test_closed_tables_are_refused(made):
    model, variables = made

    dj.close(model.embed.tables)

    with pytest.raises(dj.errors.ClosedError):
        lookup(model, variables)
