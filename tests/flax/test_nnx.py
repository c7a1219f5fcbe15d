"""DynamicEmbed of NNX: its steps are those of the plain API, under NNX's transformations too."""

import functools
import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynemb_jax as dj
from tests.flax.reference import BATCHES, DIM, FEATURES, LABELS, RATE, Reference, W, ids, stacked
from tests.twin import assert_close, keys

pytest.importorskip("flax")
import optax
from flax import nnx

import dynemb_jax.flax.nnx as djnnx


class Model(nnx.Module):
    def __init__(self, tables, remat=None):
        self.embed = djnnx.DynamicEmbed(tables)
        self.out = nnx.Linear(DIM, 1, use_bias=False, rngs=nnx.Rngs(0))
        self.out.kernel[...] = jnp.asarray(W)
        self.remat = remat

    def __call__(self, ids):
        def block(model, ids):
            return model.out(model.embed(ids)["item"])[..., 0]

        return (self.remat(block) if self.remat else block)(self, ids)


def make(**options):
    model = Model(FEATURES, **options)
    return model, nnx.Optimizer(model, optax.sgd(RATE), wrt=nnx.Param)


def loss_fn(model, ids, labels):
    return jnp.mean((model(ids) - labels) ** 2)


def train_step(model, optimizer, ids, labels):
    loss, grads = djnnx.value_and_grad(loss_fn)(model, ids, labels)
    optimizer.update(model, grads)
    djnnx.apply_gradients(model, grads)
    return loss


def plain_gradient_step(model, optimizer, ids, labels):
    djnnx.make_taps(loss_fn, model, ids, labels)
    grad_fn = nnx.value_and_grad(loss_fn, argnums=nnx.DiffState(0, djnnx.trainable))
    loss, grads = grad_fn(model, ids, labels)
    optimizer.update(model, grads)
    djnnx.apply_gradients(model, grads)
    return loss


def split_step(model, optimizer, ids, labels):
    graph, state = nnx.split((model, optimizer))

    @jax.jit
    def pure(state, ids, labels):
        pair = nnx.merge(graph, state)
        loss = train_step(*pair, ids, labels)
        return loss, nnx.state(pair)

    loss, state = pure(state, ids, labels)
    nnx.update((model, optimizer), state)
    return loss


STEPS = {
    "eager": train_step,
    "jit": nnx.jit(train_step),
    "donated": nnx.jit(train_step, donate_argnums=(0, 1)),
    "nnx.value_and_grad": nnx.jit(plain_gradient_step),
    "split and merge under jax.jit": split_step,
}
REMATS = {
    "remat": nnx.remat,
    "remat with the policy": functools.partial(nnx.remat, policy=dj.remat_policy),
}


def run(step, model, optimizer):
    return [step(model, optimizer, ids(i), LABELS[i]) for i in range(len(BATCHES))]


@pytest.mark.parametrize("name", STEPS)
def test_steps_equal_the_float64_reference(name):
    (model, optimizer), reference = make(), Reference()

    losses = run(STEPS[name], model, optimizer)

    assert_close(np.array(losses), reference.run())
    reference.check(model.embed.embeddings, model.out.kernel[...])


@pytest.mark.parametrize("name", REMATS)
def test_rematerialised_steps_equal_the_float64_reference(name):
    (model, optimizer), reference = make(remat=REMATS[name]), Reference()

    losses = run(nnx.jit(train_step), model, optimizer)

    assert_close(np.array(losses), reference.run())
    reference.check(model.embed.embeddings, model.out.kernel[...])


def test_the_policy_leaves_one_native_lookup_a_step():
    model, optimizer = make(remat=REMATS["remat with the policy"])

    run(nnx.jit(train_step), model, optimizer)

    assert dj.stats(model.embed.embeddings)["items"].lookups == len(BATCHES)


def test_scanned_steps_equal_the_float64_reference():
    pair, reference = make(), Reference()

    @nnx.jit
    @functools.partial(nnx.scan, in_axes=(nnx.Carry, 0), out_axes=(nnx.Carry, 0))
    def scanned(pair, batch):
        return pair, train_step(*pair, *batch)

    pair, losses = scanned(pair, stacked())

    assert_close(losses, reference.run())
    reference.check(pair[0].embed.embeddings, pair[0].out.kernel[...])


def test_each_step_has_the_bits_of_the_plain_api():
    model, optimizer = make()
    emb, w = dj.create(FEATURES), jnp.asarray(W)

    @jax.jit
    def plain_step(emb, w, ids, labels):
        acts, emb = dj.lookup(emb, ids)

        def loss(w, rows):
            return jnp.mean(((rows["item"] @ w)[..., 0] - labels) ** 2)

        loss, (d_w, d_rows) = jax.value_and_grad(loss, argnums=(0, 1))(w, acts.rows)
        return dj.apply_gradients(emb, acts, d_rows), w - RATE * d_w, loss

    step = nnx.jit(train_step)
    for turn in range(len(BATCHES)):
        loss = step(model, optimizer, ids(turn), LABELS[turn])
        emb, w, expected = plain_step(emb, w, ids(turn), LABELS[turn])
        np.testing.assert_allclose(loss, expected, rtol=1e-6)
        seen = keys(BATCHES[: turn + 1])
        ours = dj.get(model.embed.embeddings, "items", seen)
        np.testing.assert_allclose(ours.rows, dj.get(emb, "items", seen).rows, rtol=1e-6)
        np.testing.assert_allclose(model.out.kernel[...], w, rtol=1e-6)

    assert dj.stats(model.embed.embeddings) == dj.stats(emb)


def test_one_program_serves_all_steps():
    model, optimizer = make()
    traces = []

    @nnx.jit
    def step(model, optimizer, ids, labels):
        traces.append(None)
        return train_step(model, optimizer, ids, labels)

    run(step, model, optimizer)

    assert len(traces) == 1


def test_eval_reads_and_inserts_nothing():
    model, optimizer = make()
    run(train_step, model, optimizer)
    before = dj.stats(model.embed.embeddings)["items"]

    model.eval()
    logits = nnx.jit(lambda model, ids: model(ids))(model, {"item": keys([1, 555])})
    model.train()

    after = dj.stats(model.embed.embeddings)["items"]
    assert logits[1] == 0
    assert (after.rows, after.ids, after.found, after.missing) == (before.rows, before.ids, 1, 1)
    run(train_step, model, optimizer)


def test_train_false_reads_whatever_the_mode():
    model, _ = make()

    rows = model.embed({"item": keys([1])}, train=False)

    np.testing.assert_array_equal(rows["item"], np.zeros((1, DIM)))


def test_calls_of_one_step_make_one_exact_update():
    (model, optimizer), reference = make(), Reference()

    def two_towers(model):
        left, right = model(ids(0)), model(ids(1))
        return (jnp.mean((left - LABELS[0]) ** 2) + jnp.mean((right - LABELS[1]) ** 2)) / 2

    @nnx.jit
    def step(model, optimizer):
        loss, grads = djnnx.value_and_grad(two_towers)(model)
        optimizer.update(model, grads)
        djnnx.apply_gradients(model, grads)
        return loss

    loss = step(model, optimizer)

    assert_close(loss, reference.step(np.concatenate(BATCHES[:2]), np.concatenate(LABELS[:2])))
    reference.check(model.embed.embeddings, model.out.kernel[...])


def test_modules_keep_their_tables_apart():
    class Pair(nnx.Module):
        def __init__(self):
            self.left, self.right, self.idle = (djnnx.DynamicEmbed(FEATURES) for _ in range(3))

        def __call__(self, ids):
            return self.left(ids)["item"] - 2 * self.right(ids)["item"]

    model = Pair()

    @nnx.jit
    def step(model):
        grads = djnnx.value_and_grad(lambda model: jnp.sum(model(ids(0))))(model)[1]
        djnnx.apply_gradients(model, grads, learning_rate=1.0)

    step(model)

    left, right, idle = (
        dj.get(e.embeddings, "items", keys([-1])) for e in (model.left, model.right, model.idle)
    )
    first = left.state["accumulator"] - 1
    assert_close(right.state["accumulator"], first + 4)
    assert not idle.found.any()


def test_aux_comes_back_beside_the_value():
    model, _ = make()

    def with_aux(model, ids):
        logits = model(ids)
        return jnp.sum(logits), logits

    (value, aux), grads = djnnx.value_and_grad(with_aux, has_aux=True)(model, ids(0))
    djnnx.apply_gradients(model, grads)

    assert value == jnp.sum(aux)


def test_the_abstract_run_leaves_other_state_alone():
    class Noisy(Model):
        def __init__(self, rngs):
            super().__init__(FEATURES)
            self.dropout = nnx.Dropout(0.5, rngs=rngs)
            self.norm = nnx.BatchNorm(DIM, rngs=rngs)

        def __call__(self, ids):
            return self.dropout(self.norm(self.embed(ids)["item"]))

    model = Noisy(nnx.Rngs(0))
    before = jax.tree.map(np.asarray, nnx.as_pure(nnx.state(model, nnx.Not(nnx.RngKey))))

    djnnx.make_taps(lambda model: jnp.sum(model(ids(0))), model)

    after = nnx.as_pure(nnx.state(model, nnx.Not(nnx.RngKey)))
    assert [t.shape for t in jax.tree.leaves(after["embed"].pop("taps"))] == [(4, DIM)]
    before["embed"].pop("taps")
    jax.tree.map(np.testing.assert_array_equal, before, after)
    assert dj.stats(model.embed.embeddings)["items"].lookups == 0


def test_tables_go_with_their_last_module():
    model = Model(FEATURES)
    copy = nnx.clone(model)
    group = weakref.ref(model.embed.embeddings.group)

    del model
    gc.collect()
    assert group() is not None
    del copy
    gc.collect()

    assert group() is None


def test_an_update_may_be_skipped_inside_a_step():
    model, optimizer = make()

    @nnx.jit
    def step(model, optimizer, ids, labels):
        loss, grads = djnnx.value_and_grad(loss_fn)(model, ids, labels)

        def apply(model, optimizer, grads):
            optimizer.update(model, grads)
            djnnx.apply_gradients(model, grads)

        def skip(model, optimizer, grads):
            djnnx.discard(model)

        nnx.cond(jnp.isfinite(loss), apply, skip, model, optimizer, grads)
        return loss

    step(model, optimizer, ids(0), LABELS[0] * np.float32(np.inf))
    assert dj.stats(model.embed.embeddings)["items"].updates == 0
    step(model, optimizer, ids(0), LABELS[0])

    reference = Reference()
    reference.step(BATCHES[0], LABELS[0])
    reference.check(model.embed.embeddings, model.out.kernel[...])


def test_host_calls_go_in_and_out():
    model, optimizer = make()
    emb = dj.assign(model.embed.embeddings, "items", [1], np.ones((1, DIM), np.float32))

    model.embed.set_embeddings(emb)

    np.testing.assert_array_equal(model.embed(ids(0), train=False)["item"][0], np.ones(DIM))
    run(train_step, model, optimizer)


def test_an_abstract_model_makes_no_tables():
    emb = dj.create(FEATURES)

    abstract = nnx.eval_shape(lambda: Model(emb))
    model = nnx.jit(lambda: Model(emb))()

    assert abstract.embed.embeddings.group is emb.group
    run(train_step, model, nnx.Optimizer(model, optax.sgd(RATE), wrt=nnx.Param))
    assert dj.stats(model.embed.embeddings)["items"].rows == 6


def test_closed_tables_are_refused():
    model, optimizer = make()

    dj.close(model.embed.embeddings)

    with pytest.raises(dj.errors.ClosedError):
        run(train_step, model, optimizer)
