"""Mistakes with the module of NNX have an error that says what to do."""

import jax
import jax.numpy as jnp
import pytest

import dynemb_jax as dj
from dynemb_jax import group as groups
from tests.flax.reference import FEATURES, LABELS, RATE, ids

pytest.importorskip("flax")
import optax
from flax import nnx

import dynemb_jax.flax.nnx as djnnx
from tests.flax.test_nnx import Model, loss_fn, make, train_step

BATCH = (ids(0), LABELS[0])


def gradient(model):
    return djnnx.value_and_grad(loss_fn)(model, *BATCH)[1]


@pytest.mark.parametrize("transform", [lambda f: f, nnx.jit], ids=["eager", "jit"])
def test_a_gradient_without_taps_is_refused(transform):
    model, _ = make()

    with pytest.raises(dj.errors.InputError, match=r"without taps.*value_and_grad"):
        transform(nnx.value_and_grad(loss_fn))(model, *BATCH)


def test_a_forgotten_update_is_noticed_by_the_next_step():
    model, _ = make()
    step = nnx.jit(lambda model: gradient(model) and None)
    step(model)

    with pytest.raises(dj.errors.StaleStateError, match=r"embed.*apply_gradients\(model, grads\)"):
        step(model)


def test_a_forgotten_update_is_noticed_by_the_next_lookup():
    model, _ = make()
    gradient(model)

    with pytest.raises(dj.errors.StaleStateError, match="apply_gradients"):
        model(ids(1))


def test_a_discarded_step_is_no_forgotten_update():
    model, optimizer = make()
    gradient(model)

    djnnx.discard(model)

    train_step(model, optimizer, *BATCH)
    assert dj.stats(model.embed.embeddings)["items"].updates == 1


def test_gradients_of_the_dense_part_alone_are_refused():
    model, _ = make()
    djnnx.make_taps(loss_fn, model, *BATCH)
    grads = nnx.grad(loss_fn)(model, *BATCH)

    with pytest.raises(dj.errors.InputError, match=r"embed: 1 training lookups.*value_and_grad"):
        djnnx.apply_gradients(model, grads)


def test_gradients_applied_twice_are_refused():
    model, _ = make()
    grads = gradient(model)
    djnnx.apply_gradients(model, grads)

    with pytest.raises(dj.errors.InputError, match="0 training lookups"):
        djnnx.apply_gradients(model, grads)


def test_gradients_that_are_no_state_are_refused():
    model, _ = make()
    value_and_grads = djnnx.value_and_grad(loss_fn)(model, *BATCH)

    with pytest.raises(dj.errors.InputError, match=r"needs the nnx.State .* got tuple"):
        djnnx.apply_gradients(model, value_and_grads)


def test_a_model_without_tables_is_refused():
    model = nnx.Linear(2, 2, rngs=nnx.Rngs(0))

    with pytest.raises(dj.errors.InputError, match="Linear holds no DynamicEmbed"):
        djnnx.value_and_grad(lambda model: 0.0)(model)


@pytest.mark.parametrize("wrt", [nnx.Variable, ..., djnnx.Tables])
def test_differentiating_for_the_token_is_refused(wrt):
    model, _ = make()

    with pytest.raises(dj.errors.InputError, match=r"state of tables.*wrt=nnx.Param"):
        djnnx.value_and_grad(loss_fn, wrt=wrt)(model, *BATCH)


@pytest.mark.parametrize("wrt", [nnx.Variable, djnnx.Tables])
@pytest.mark.parametrize("tx", [optax.sgd(RATE), optax.adamw(RATE)], ids=["sgd", "adamw"])
def test_an_optimizer_of_the_token_never_takes_a_step(wrt, tx):
    model, _ = make()
    optimizer = nnx.Optimizer(model, tx, wrt=wrt)

    with pytest.raises(ValueError, match=r"embed|tables"):
        optimizer.update(model, gradient(model))


def test_an_optimizer_of_the_taps_as_well_does_no_harm():
    model, optimizer = make()
    both = nnx.Optimizer(model, optax.sgd(RATE), wrt=djnnx.trainable)
    other, _ = make()

    for _ in range(2):
        left = train_step(model, optimizer, *BATCH)
        right = train_step(other, both, *BATCH)

    assert left == right


@pytest.mark.parametrize("change", [lambda t: t - 1, lambda t: -t, lambda t: t.astype(float)])
def test_a_token_that_was_changed_is_noticed(change):
    model, optimizer = make()
    state = jax.tree.map(change, nnx.state(model, djnnx.Tables))
    nnx.update(model, state)

    with pytest.raises(dj.errors.StaleStateError, match="resync"):
        train_step(model, optimizer, *BATCH)


class Two(nnx.Module):
    """Two modules on one Embeddings, or one module under two names."""

    def __init__(self, emb, shared, second_trains=True):
        self.left = djnnx.DynamicEmbed(emb)
        self.right = self.left if shared else djnnx.DynamicEmbed(emb)
        self.second_trains = second_trains

    def __call__(self, ids):
        return self.left(ids)["item"] + self.right(ids, train=self.second_trains)["item"]


def two_loss(model, ids, labels):
    return jnp.mean((model(ids).sum(-1) - labels) ** 2)


def test_two_modules_on_one_embeddings_are_told_to_be_one():
    model = Two(dj.create(FEATURES), shared=False)

    with pytest.raises(dj.errors.StaleStateError, match=r"left and right.*make one DynamicEmbed"):
        djnnx.value_and_grad(two_loss)(model, *BATCH)

    assert dj.stats(model.left.embeddings)["items"].lookups == 0


@pytest.mark.parametrize(("shared", "second_trains"), [(True, True), (False, False)])
def test_one_module_in_two_places_and_a_second_one_that_reads_only_work(shared, second_trains):
    model = Two(dj.create(FEATURES), shared, second_trains)

    for _ in range(2):
        _, grads = djnnx.value_and_grad(two_loss)(model, *BATCH)
        djnnx.apply_gradients(model, grads)

    assert dj.stats(model.left.embeddings)["items"].updates == 2


def test_a_copy_left_behind_by_training_is_stale():
    model, optimizer = make()
    old = nnx.clone(model)
    train_step(model, optimizer, *BATCH)

    def train_old():
        gradient(old)
        dj.stats(old.embed.embeddings)  # a GPU tells later

    with pytest.raises(dj.errors.StaleStateError):
        train_old()


def test_state_dropped_by_split_and_merge_is_stale():
    model, _ = make()
    graph, state = nnx.split(model)

    @jax.jit
    def dropping(state):
        model = nnx.merge(graph, state)
        grads = gradient(model)
        djnnx.apply_gradients(model, grads)
        return nnx.state(model, nnx.Param), model.embed.embeddings.token

    def drop():
        jax.block_until_ready(dropping(state))
        dj.stats(model.embed.embeddings)  # a GPU tells later

    drop()

    with pytest.raises(dj.errors.StaleStateError), dj.errors.typed():
        drop()


@pytest.mark.parametrize(
    "build",
    [lambda f: nnx.eval_shape(f), lambda f: nnx.jit(f)(), lambda f: jax.eval_shape(f)],
    ids=["nnx.eval_shape", "nnx.jit", "jax.eval_shape"],
)
def test_tables_are_not_made_while_tracing(build):
    created = groups._created.total()

    with pytest.raises(dj.errors.InputError, match=r"while tracing.*DynamicEmbed\(emb\)"):
        build(lambda: nnx.state(Model(FEATURES)))

    assert groups._created.total() == created
