"""Transformations of optax on rows: whose state is what, which can be, and what they promise."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dynemb_jax as dj
from tests.twin import assert_close, create, random_grads

IDS = np.array([1, 2, 3])


def table(transformation, **options):
    """A table of one feature with the transformation."""
    return create(optimizer=dj.optimizers.from_optax(transformation, **options))


def train(emb, steps, ids=IDS, **options):
    """So many updates of the ids."""
    for step in range(steps):
        acts, emb = dj.lookup(emb, ids)
        emb = dj.apply_gradients(emb, acts, random_grads((len(ids), 4), step), **options)
    return emb


def read(emb, ids=IDS):
    found = dj.get(emb, "items", ids)
    assert found.found.all()
    return found


def by_hand(transformation, first, steps):
    """Rows after the steps, each row a model of its own that optax trains alone."""
    with jax.numpy_dtype_promotion("standard"):
        update, rows = jax.jit(transformation.update), []
        for position, row in enumerate(np.asarray(first)):
            params = jnp.asarray(row)
            state = transformation.init(params)
            for step in range(steps):
                grad = jnp.asarray(random_grads((len(first), 4), step)[position])
                updates, state = update(grad, state, params)
                params = optax.apply_updates(params, updates)
            rows.append(params)
    return np.stack(rows)


ELEMENTWISE = {
    "adamw with a schedule": optax.adamw(optax.linear_schedule(0.1, 0.0, 4)),
    "a chain with two traces": optax.chain(optax.trace(0.9), optax.trace(0.5), optax.scale(-0.1)),
    "bfloat16 moments": optax.adam(0.1, mu_dtype=jnp.bfloat16),
    "a first value that is not 0": optax.adagrad(0.1),
    "bool state": optax.optimistic_gradient_descent(0.1),
    "float numbers": optax.inject_hyperparams(optax.sgd)(0.1),
    "every third update": optax.MultiSteps(optax.adam(0.1), 3).gradient_transformation(),
    "lion": optax.lion(0.1),
    "nadam": optax.nadam(0.1),
    "centred RMSProp": optax.rmsprop(0.1, momentum=0.9, centered=True),
    "rprop": optax.rprop(0.1),
    "masked": optax.masked(optax.adam(0.1), True),
}
ROWWISE = {
    "clip_by_global_norm": optax.chain(optax.clip_by_global_norm(0.5), optax.sgd(0.1)),
    "lamb": optax.lamb(0.1),
    "lars": optax.lars(0.1),
    "apply_if_finite": optax.apply_if_finite(optax.adam(0.1), 3),
    "zero_nans": optax.chain(optax.zero_nans(), optax.sgd(0.1)),
    "normalize": optax.normalize_by_update_norm(),
    "centralize": optax.chain(optax.stateless(lambda u, _: u - u.mean()), optax.sgd(0.1)),
}


@pytest.mark.parametrize(
    ("name", "count"),
    [
        *((name, "global") for name in (*ELEMENTWISE, *ROWWISE)),
        *((name, "row") for name in ("adamw with a schedule", "every third update", "lamb")),
    ],
)
def test_rows_follow_the_transformation(name, count):
    transformation = {**ELEMENTWISE, **ROWWISE}[name]
    emb = table(transformation, count=count, rowwise=name in ROWWISE)
    acts, emb = dj.lookup(emb, IDS)

    emb = train(emb, 5)

    # Compilers may keep more digits of bfloat16 than it has.
    rtol = 2e-2 if name == "bfloat16 moments" else 1e-4
    assert_close(read(emb).rows, by_hand(transformation, acts.rows, 5), rtol=rtol)


@pytest.mark.parametrize("name", ["bfloat16 moments", "bool state", "every third update"])
def test_state_of_every_kind_continues_bit_for_bit(name):
    emb = train(table(ELEMENTWISE[name], count="row"), 4)
    saved = read(emb)

    fresh = table(ELEMENTWISE[name], count="row")
    fresh = dj.assign(fresh, "items", IDS, saved.rows, saved.state)
    first, second = read(train(emb, 3)), read(train(fresh, 3))

    np.testing.assert_array_equal(first.rows, second.rows)
    for part in first.state:
        np.testing.assert_array_equal(first.state[part], second.state[part])


@pytest.mark.parametrize("name", ROWWISE)
def test_columns_that_influence_each_other_are_found_by_trial(name):
    with pytest.raises(dj.errors.ConfigError, match=r"not element-wise.*rowwise=True.*d_rows"):
        dj.optimizers.from_optax(ROWWISE[name])


IMPOSSIBLE = {
    "no transformation": (3, "needs an optax transformation, got 3"),
    "a factory": (optax.adam, "needs an optax transformation"),
    "other arguments": (optax.polyak_sgd(), "does not work on a row alone.*value"),
    "state of other shapes": (optax.adafactor(0.1), "v_row.*shape of the row"),
    "a key of random numbers": (optax.add_noise(0.1, 0.5, key=0), "rng_key|shape of the row"),
    "state that copies rows": (optax.contrib.schedule_free_sgd(0.1), "'z' .*function of the row"),
    "state that changes": (
        optax.GradientTransformation(lambda w: (), lambda g, state, w: (g, (g,))),
        "changes its structure",
    ),
    "integers in the shape of the row": (
        optax.GradientTransformation(lambda w: w.astype(jnp.int32), lambda g, s, w: (g, s)),
        "is int32",
    ),
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_a_transformation_that_cannot_be_a_rule_is_refused(case):
    transformation, message = IMPOSSIBLE[case]

    with pytest.raises(dj.errors.ConfigError, match=message):
        dj.optimizers.from_optax(transformation)


@pytest.mark.parametrize(("option", "value"), [("count", "rows"), ("rowwise", 1)])
def test_an_impossible_option_is_refused_by_its_name(option, value):
    with pytest.raises(dj.errors.ConfigError, match=f"{option} must be .*; pass"):
        dj.optimizers.from_optax(optax.sgd(0.1), **{option: value})


def test_names_of_state_are_the_shortest_that_tell_parts_apart():
    def names(transformation, **options):
        return list(read(train(table(transformation, **options), 1)).state)

    assert names(optax.adam(0.1)) == ["mu", "nu"]
    assert names(optax.adam(0.1), count="row") == ["mu", "nu", "count"]
    assert names(ELEMENTWISE["a chain with two traces"]) == ["0.trace", "1.trace"]
    assert names(ELEMENTWISE["float numbers"]) == ["learning_rate"]
    alone = optax.GradientTransformation(jnp.zeros_like, lambda g, s, w: (-g, s + g))
    assert names(alone) == ["state"]


def schedule_of(values):
    return lambda count: jnp.asarray(values)[count]


def test_a_schedule_counts_the_updates_of_all_tables_or_those_of_the_row():
    transformation = optax.scale_by_schedule(schedule_of([-1.0, -10.0, -100.0]))
    moves = {}
    for count in ("global", "row"):
        emb = table(transformation, count=count)
        acts, emb = dj.lookup(emb, np.array([1]))
        emb = dj.apply_gradients(emb, acts, np.ones((1, 4), np.float32))
        acts, emb = dj.lookup(emb, np.array([2]))
        emb = dj.apply_gradients(emb, acts, np.ones((1, 4), np.float32))
        moves[count] = read(emb, np.array([2])).rows - np.asarray(acts.rows)

    assert_close(moves["global"], np.full((1, 4), -10.0))
    assert_close(moves["row"], np.full((1, 4), -1.0))


def test_the_step_of_the_caller_is_the_count():
    emb = table(optax.scale_by_schedule(schedule_of([-1.0, -10.0, -100.0])))
    acts, emb = dj.lookup(emb, np.array([1]))

    emb = jax.jit(lambda e, a, s: dj.apply_gradients(e, a, jnp.ones((1, 4)), step=s))(emb, acts, 2)

    moved = read(emb, np.array([1])).rows - np.asarray(acts.rows)
    assert_close(moved, np.full((1, 4), -100.0), rtol=1e-4)


def test_a_count_that_skips_updates_is_the_rows_own():
    emb = table(ELEMENTWISE["every third update"])

    state = read(train(emb, 4)).state

    np.testing.assert_array_equal(state["count"], 1)
    np.testing.assert_array_equal(state["mini_step"], 1)


def test_a_count_of_updates_is_an_exact_integer():
    emb = table(optax.adam(0.01), count="row")
    zeros, count = np.zeros((1, 4), np.float32), np.array([2**24 + 1], np.int32)

    emb = dj.assign(emb, "items", [1], zeros, {"mu": zeros, "nu": zeros, "count": count})
    emb = train(emb, 1, np.array([1]))

    np.testing.assert_array_equal(read(emb, np.array([1])).state["count"], count + 1)


def test_rows_whose_gradient_is_not_finite_can_be_skipped():
    emb = table(ROWWISE["apply_if_finite"], rowwise=True)
    acts, emb = dj.lookup(emb, IDS)
    grads = random_grads((3, 4))
    grads[1, 2] = np.nan

    emb = dj.apply_gradients(emb, acts, grads)

    rows, state = read(emb).rows, read(emb).state
    assert np.isfinite(rows).all()
    np.testing.assert_array_equal(rows[1], acts.rows[1])
    assert (rows[[0, 2]] != np.asarray(acts.rows)[[0, 2]]).all()
    np.testing.assert_array_equal(state["total_notfinite"], [0, 1, 0])
    np.testing.assert_array_equal(state["last_finite"], [1, 0, 1])


def test_a_norm_of_rows_is_what_max_grad_norm_bounds():
    tables = [
        table(optax.chain(optax.clip_by_global_norm(0.5), optax.sgd(0.1)), rowwise=True),
        table(optax.sgd(0.1), max_grad_norm=0.5),
        create(optimizer=dj.optimizers.sgd(0.1, max_grad_norm=0.5)),
    ]

    rows = [read(train(emb, 3, np.array([1, 2, 1, 3]))).rows for emb in tables]

    assert_close(rows[0], rows[1])
    assert_close(rows[1], rows[2])


def test_new_and_imported_rows_begin_with_the_first_state():
    emb = table(optax.adagrad(0.1, initial_accumulator_value=0.25), count="row")

    _, emb = dj.lookup(emb, IDS)
    emb = dj.assign(emb, "items", IDS[:1], np.ones((1, 4), np.float32))

    np.testing.assert_array_equal(read(emb).state["sum_of_squares"], np.full((3, 4), 0.25))
