"""DynamicEmbed of Linen: its steps are those of the plain API, under transformations too."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynemb_jax as dj
from dynemb_jax import group as groups
from tests.flax.reference import BATCHES, DIM, FEATURES, LABELS, RATE, Reference, W, ids, stacked
from tests.twin import assert_close, keys

pytest.importorskip("flax")
import flax
import flax.linen as nn
import optax

import dynemb_jax.flax.linen as djlinen


class Model(nn.Module):
    embed: djlinen.DynamicEmbed
    remat: object = None

    @nn.compact
    def __call__(self, ids, train=True):
        def block(model, ids):
            rows = model.embed(ids, train)["item"]
            init = nn.initializers.constant(jnp.asarray(W))
            return nn.Dense(1, use_bias=False, kernel_init=init)(rows)[..., 0]

        return (self.remat(block) if self.remat else block)(self, ids)


TX = optax.sgd(RATE)


def make(**options):
    """Model, and the state to thread: (params, opt_state, tables)."""
    model = Model(djlinen.DynamicEmbed.from_features(FEATURES), **options)
    variables = model.init(jax.random.key(0), ids(0))
    params, tables = variables["params"], variables["dynemb"]
    return model, (params, TX.init(params), tables)


def train_step(model, state, ids, labels):
    params, opt_state, tables = state
    taps = djlinen.make_taps(model, {"params": params, "dynemb": tables}, ids)

    def loss_fn(params, taps):
        variables = {"params": params, "dynemb": tables, "dynemb_taps": taps}
        logits, changed = model.apply(variables, ids, mutable="dynemb")
        return jnp.mean((logits - labels) ** 2), changed["dynemb"]

    grad_fn = jax.value_and_grad(loss_fn, argnums=(0, 1), has_aux=True)
    (loss, tables), (d_params, d_taps) = grad_fn(params, taps)
    tables = djlinen.apply_gradients(tables, d_taps)
    updates, opt_state = TX.update(d_params, opt_state, params)
    return (optax.apply_updates(params, updates), opt_state, tables), loss


STEPS = {
    "eager": train_step,
    "jit": jax.jit(train_step, static_argnums=0),
    "donated": jax.jit(train_step, static_argnums=0, donate_argnums=1),
}
REMATS = {
    "remat": nn.remat,
    "remat with the policy": functools.partial(nn.remat, policy=dj.remat_policy),
}


def run(step, model, state):
    losses = []
    for turn in range(len(BATCHES)):
        state, loss = step(model, state, ids(turn), LABELS[turn])
        losses.append(loss)
    return state, np.array(losses)


def embeddings(model, state):
    return model.embed.embeddings(state[2]["embed"])


def check(reference, model, state):
    reference.check(embeddings(model, state), state[0]["Dense_0"]["kernel"])


@pytest.mark.parametrize("name", STEPS)
def test_steps_equal_the_float64_reference(name):
    (model, state), reference = make(), Reference()

    state, losses = run(STEPS[name], model, state)

    assert_close(losses, reference.run())
    check(reference, model, state)


@pytest.mark.parametrize("name", REMATS)
def test_rematerialised_steps_equal_the_float64_reference(name):
    (model, state), reference = make(remat=REMATS[name]), Reference()

    state, losses = run(STEPS["jit"], model, state)

    assert_close(losses, reference.run())
    check(reference, model, state)


def test_the_policy_leaves_one_native_lookup_a_step():
    model, state = make(remat=REMATS["remat with the policy"])

    state, _ = run(STEPS["jit"], model, state)

    assert dj.stats(embeddings(model, state))["items"].lookups == len(BATCHES)


def test_scanned_steps_equal_the_float64_reference():
    (model, state), reference = make(), Reference()

    @jax.jit
    def scanned(state, batches):
        return jax.lax.scan(lambda state, b: train_step(model, state, *b), state, batches)

    state, losses = scanned(state, stacked())

    assert_close(losses, reference.run())
    check(reference, model, state)


def test_each_step_equals_the_plain_api():
    model, state = make()
    emb, w = dj.create(FEATURES), jnp.asarray(W)

    @jax.jit
    def plain_step(emb, w, ids, labels):
        acts, emb = dj.lookup(emb, ids)

        def loss(w, rows):
            return jnp.mean(((rows["item"] @ w)[..., 0] - labels) ** 2)

        loss, (d_w, d_rows) = jax.value_and_grad(loss, argnums=(0, 1))(w, acts.rows)
        return dj.apply_gradients(emb, acts, d_rows), w - RATE * d_w, loss

    for turn in range(len(BATCHES)):
        state, loss = STEPS["jit"](model, state, ids(turn), LABELS[turn])
        emb, w, expected = plain_step(emb, w, ids(turn), LABELS[turn])
        np.testing.assert_allclose(loss, expected, rtol=1e-6)
        seen = keys(BATCHES[: turn + 1])
        ours = dj.get(embeddings(model, state), "items", seen)
        np.testing.assert_allclose(ours.rows, dj.get(emb, "items", seen).rows, rtol=1e-6)
        np.testing.assert_allclose(state[0]["Dense_0"]["kernel"], w, rtol=1e-6)

    assert dj.stats(embeddings(model, state)) == dj.stats(emb)


def test_train_false_reads_and_inserts_nothing():
    model, state = make()
    (params, _, tables), _ = run(STEPS["jit"], model, state)
    before = dj.stats(model.embed.embeddings(tables["embed"]))["items"]

    variables = {"params": params, "dynemb": tables}
    logits = jax.jit(functools.partial(model.apply, train=False))(
        variables, {"item": keys([1, 555])}
    )

    after = dj.stats(model.embed.embeddings(tables["embed"]))["items"]
    assert logits[1] == 0
    assert (after.rows, after.ids, after.found, after.missing) == (before.rows, before.ids, 1, 1)


def test_calls_of_one_step_make_one_exact_update():
    embed = djlinen.DynamicEmbed.from_features(FEATURES)

    class Towers(nn.Module):
        embed: djlinen.DynamicEmbed

        def __call__(self, left, right):
            return self.embed(left)["item"], self.embed(right)["item"]

    model = Towers(embed)
    tables = model.init(jax.random.key(0), ids(0), ids(1))["dynemb"]
    reference = Reference()

    @jax.jit
    def step(tables):
        taps = djlinen.make_taps(model, {"dynemb": tables}, ids(0), ids(1))

        def loss_fn(taps):
            variables = {"dynemb": tables, "dynemb_taps": taps}
            rows, changed = model.apply(variables, ids(0), ids(1), mutable=["dynemb"])
            logits = jnp.concatenate(rows) @ jnp.asarray(W)
            labels = jnp.concatenate(LABELS[:2])
            return jnp.mean((logits[:, 0] - labels) ** 2), changed["dynemb"]

        d_taps, tables = jax.grad(loss_fn, has_aux=True)(taps)
        return djlinen.apply_gradients(tables, d_taps)

    tables = step(tables)

    reference.step(np.concatenate(BATCHES[:2]), np.concatenate(LABELS[:2]))
    reference.w = W
    reference.check(embed.embeddings(tables["embed"]), W)


def test_frozen_collections_work_as_well():
    model, (params, opt_state, tables) = make()
    frozen = djlinen.discard(flax.core.freeze(tables))

    (_, _, tables), _ = train_step(model, (params, opt_state, frozen), ids(0), LABELS[0])

    assert isinstance(frozen, flax.core.FrozenDict)
    assert dj.stats(model.embed.embeddings(tables["embed"]))["items"].updates == 1


def test_init_makes_no_tables_and_no_rows():
    model, _ = make()
    created = groups._created.total()
    key = jax.random.key(0)

    shapes = jax.eval_shape(model.init, key, ids(0))
    variables = [model.init(key, ids(0)), jax.jit(model.init)(key, ids(0))]

    assert groups._created.total() == created
    assert jax.tree.map(jnp.shape, variables[0]) == jax.tree.map(lambda x: x.shape, shapes)
    for tables in (v["dynemb"] for v in variables):
        assert dj.stats(model.embed.embeddings(tables["embed"]))["items"].rows == 0


def test_the_collection_holds_one_small_array_a_module():
    _, (_, _, tables) = make()

    assert jax.tree.map(lambda x: (x.shape, x.dtype.name), tables) == {
        "embed": {"token": ((1,), "int32")}
    }
    flax.serialization.to_bytes(tables)


def test_host_calls_go_in_and_out():
    model, (params, _, tables) = make()
    emb = model.embed.embeddings(tables["embed"])
    emb = dj.assign(emb, "items", [1], np.ones((1, DIM), np.float32))

    tables = tables | {"embed": model.embed.variables_of(emb)}

    logits = model.apply({"params": params, "dynemb": tables}, ids(0), train=False)
    assert_close(logits[0], W.sum())
