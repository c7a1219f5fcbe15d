"""What every optimizer must satisfy: summed duplicates, one update, float64 reference, optax."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dynemb_jax as dj
from tests.contract import dense_rules
from tests.plugins import ALL_OPTIMIZERS, decayed
from tests.twin import Twin, assert_close, create, random_grads


def clipped(transformation, norm=0.5):
    """The transformation, of gradients whose rows are no longer than the norm."""
    return optax.chain(dense_rules.by_row(optax.clip_by_global_norm(norm)), transformation)


OPTAX = {
    "sgd": optax.sgd(0.1),
    "momentum": optax.sgd(0.1, momentum=0.9),
    "momentum_other_decay": optax.sgd(0.1, momentum=0.5),
    "nesterov": optax.sgd(0.1, momentum=0.9, nesterov=True),
    "adagrad": optax.adagrad(0.05, initial_accumulator_value=0.1, eps=1e-7),
    "adagrad_other_start": optax.adagrad(0.05, initial_accumulator_value=0.0, eps=1e-3),
    "rowwise_adagrad": dense_rules.rowwise_adagrad(0.05, 0.0, 1e-8),
    "rowwise_adagrad_other_start": dense_rules.rowwise_adagrad(0.05, 0.5, 1e-3),
    "rowwise_adagrad_without_eps": dense_rules.rowwise_adagrad(0.05, 0.0, 0.0),
    "adam": optax.adam(0.01),
    # With every row in every batch, a row's own count is the number of steps.
    "adam_row": optax.adam(0.01),
    "adam_other_decay": optax.adam(0.01, b1=0.5, b2=0.75, eps=1e-3),
    "rmsprop": optax.rmsprop(0.01),
    "rmsprop_other_start": optax.rmsprop(0.01, decay=0.5, eps=1e-3, initial_scale=1.0),
    "rmsprop_without_eps": optax.rmsprop(0.01, eps=0.0),
    "adamw": optax.adamw(0.01),
    "adamw_strong": optax.adamw(0.01, b1=0.5, b2=0.75, eps=1e-3, weight_decay=2.0),
    "adamw_row": optax.adamw(0.01, weight_decay=2.0),
    "partial_rowwise_adam": dense_rules.partial_rowwise_adam(0.01),
    "partial_rowwise_adam_row": dense_rules.partial_rowwise_adam(0.01),
    "partial_rowwise_adam_other_decay": dense_rules.partial_rowwise_adam(0.01, 0.5, 0.75, 1e-3),
    "ftrl": dense_rules.ftrl(0.1),
    "ftrl_l1": dense_rules.ftrl(0.1, l1=0.8),
    "ftrl_all": dense_rules.ftrl(0.2, l1=0.3, l2=0.5, beta=1.0, start=0.0),
    "ftrl_without_start": dense_rules.ftrl(0.1, l2=0.5, start=0.0),
    "lamb": dense_rules.by_row(optax.lamb(0.01)),
    "lamb_decay": dense_rules.by_row(optax.lamb(0.1, b1=0.5, b2=0.75, eps=1e-3, weight_decay=0.5)),
    "sgd_decay": decayed(optax.sgd(0.1)),
    "momentum_decay": decayed(optax.sgd(0.1, momentum=0.9)),
    "nesterov_decay": decayed(optax.sgd(0.1, momentum=0.9, nesterov=True)),
    "adagrad_decay": decayed(optax.adagrad(0.05, initial_accumulator_value=0.1, eps=1e-7)),
    "rowwise_adagrad_decay": decayed(dense_rules.rowwise_adagrad(0.05, 0.0, 1e-8)),
    "rmsprop_decay": decayed(optax.rmsprop(0.01)),
    "adam_decay": decayed(optax.adam(0.01)),
    "adam_row_decay": decayed(optax.adam(0.01)),
    "sgd_clip": clipped(optax.sgd(0.1)),
    "sgd_decay_clip": clipped(decayed(optax.sgd(0.1))),
    "momentum_clip": clipped(optax.sgd(0.1, momentum=0.9)),
    "adagrad_clip": clipped(optax.adagrad(0.05, initial_accumulator_value=0.1, eps=1e-7)),
    "rowwise_adagrad_clip": clipped(dense_rules.rowwise_adagrad(0.05, 0.0, 1e-8)),
    "rmsprop_clip": clipped(optax.rmsprop(0.01)),
    "adam_clip": clipped(optax.adam(0.01), 2.0),
    "adamw_clip": clipped(optax.adamw(0.01, weight_decay=2.0)),
    "partial_rowwise_adam_clip": clipped(dense_rules.partial_rowwise_adam(0.01)),
    "ftrl_clip": clipped(dense_rules.ftrl(0.1)),
    "lamb_clip": dense_rules.by_row(optax.chain(optax.clip_by_global_norm(2.0), optax.lamb(0.01))),
    "from_optax": optax.adam(0.01),
    "from_optax_row": optax.adam(0.01),
    "from_optax_momentum": optax.sgd(0.1, momentum=0.9),
    "from_optax_stateless": decayed(optax.sgd(0.1)),
    "from_optax_lamb": dense_rules.by_row(optax.lamb(0.01)),
    "from_optax_clip": clipped(optax.adam(0.01), 2.0),
}


@pytest.mark.parametrize("copies", [1, 2, 33, 1025])
@pytest.mark.parametrize("name", ALL_OPTIMIZERS)
def test_copies_of_an_id_are_one_update_by_their_sum(name, copies):
    twin = Twin(optimizer=name)
    ids = [7] * copies + [8]

    for step in range(2):
        twin.train(ids, seed=step)

    twin.check()


@pytest.mark.parametrize("name", ALL_OPTIMIZERS)
def test_a_hundred_thousand_copies_are_one_update_by_their_sum(name):
    # A hundred thousand float32 additions round by some 1e-5 of their sum.
    twin = Twin(optimizer=name, rtol=1e-4)

    twin.train(np.full(100_000, 7))

    twin.check()


@pytest.mark.parametrize("name", OPTAX)
def test_steps_over_all_rows_equal_optax(name):
    emb = create(4, optimizer=ALL_OPTIMIZERS[name][0])
    ids = np.arange(5)
    acts, emb = dj.lookup(emb, ids)
    params = acts.rows
    state = OPTAX[name].init(params)

    for step in range(4):
        grads = jnp.asarray(random_grads((5, 4), step))
        acts, emb = dj.lookup(emb, ids)
        emb = dj.apply_gradients(emb, acts, grads)
        # Optax itself is not written for strict promotion.
        with jax.numpy_dtype_promotion("standard"):
            updates, state = OPTAX[name].update(grads, state, params)
        params = optax.apply_updates(params, updates)

    assert_close(dj.get(emb, "items", ids).rows, params, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ALL_OPTIMIZERS)
def test_rows_that_come_and_go_follow_the_reference(name):
    twin = Twin(optimizer=name)
    rng = np.random.default_rng(0)

    for step in range(8):
        twin.train(rng.integers(0, 20, 16), seed=step)

    twin.check()


@pytest.mark.parametrize("name", ALL_OPTIMIZERS)
def test_a_table_made_of_rows_and_state_continues_bit_for_bit(name):
    def train(emb, steps):
        for step in steps:
            # Each key once: sums of several gradients have an order.
            ids = np.random.default_rng(step).permutation(12)[:8]
            acts, emb = dj.lookup(emb, ids)
            emb = dj.apply_gradients(emb, acts, random_grads((8, 5), step), step=step)
        return emb

    known = np.arange(12)
    emb = train(create(5, optimizer=ALL_OPTIMIZERS[name][0]), range(4))
    saved = dj.get(emb, "items", known)
    assert saved.found.all()
    fresh = create(5, optimizer=ALL_OPTIMIZERS[name][0], seed=1)
    fresh = dj.assign(fresh, "items", known, saved.rows, saved.state)

    first, second = (dj.get(train(one, range(4, 8)), "items", known) for one in (emb, fresh))

    assert not np.array_equal(first.rows, saved.rows)
    np.testing.assert_array_equal(first.rows.view(np.uint32), second.rows.view(np.uint32))
    assert first.state.keys() == second.state.keys()
    for part in first.state:
        bits = [one.state[part].view(np.uint32) for one in (first, second)]
        np.testing.assert_array_equal(*bits)


@pytest.mark.parametrize("name", ALL_OPTIMIZERS)
def test_a_zero_gradient_is_an_update_like_any(name):
    twin = Twin(optimizer=name)
    twin.train([1, 2])

    twin.train([1], grads=np.zeros((1, 4), np.float32))
    twin.train([3], grads=np.zeros((1, 4), np.float32))

    twin.check()
    assert np.isfinite(dj.get(twin.emb, "items", np.arange(4)).rows).all()


@pytest.mark.parametrize("name", ALL_OPTIMIZERS)
def test_a_gradient_that_is_not_finite_stays_in_its_row(name):
    for bad in (np.nan, np.inf):
        twin = Twin(optimizer=name)
        grads = random_grads((3, 4))
        grads[1, 2] = bad

        with np.errstate(invalid="ignore"):
            twin.train([1, 2, 3], grads=grads)

        assert not np.isfinite(dj.get(twin.emb, "items", np.array([2])).rows).all()
        twin.check([1, 3])


def test_rowwise_adagrad_by_hand():
    rule = dj.optimizers.rowwise_adagrad(1.0, initial_accumulator=11.0, eps=1.0)
    emb = create(2, optimizer=rule, initializer=dj.initializers.constant(0.0))

    # a = 11 + 25, the divisor 6 + 1.
    acts, emb = dj.lookup(emb, np.array([3]))
    emb = dj.apply_gradients(emb, acts, np.array([[7, 1]], np.float32))
    # a = 36 + 64, the divisor 10 + 1.
    acts, emb = dj.lookup(emb, np.array([3]))
    emb = dj.apply_gradients(emb, acts, np.array([[8, -8]], np.float32))

    got = dj.get(emb, "items", np.array([3, 4]))
    assert_close(got.rows, [[-1 - 8 / 11, -1 / 7 + 8 / 11], [0, 0]])
    assert got.state["accumulator"].dtype == np.float32
    np.testing.assert_array_equal(got.state["accumulator"], np.float32([100, 0]))


@pytest.mark.parametrize("dim", [1, 3, 8, 1021, 4096])
@pytest.mark.parametrize(
    "name", ["rowwise_adagrad", "rowwise_adagrad_decay", "partial_rowwise_adam_row"]
)
def test_a_sum_over_a_row_takes_every_column_once(name, dim):
    twin = Twin(dim, optimizer=name)

    twin.train([1, 2])
    twin.train([2, 3], seed=1)

    twin.check()


def test_a_row_does_not_move_without_eps_until_it_has_a_gradient():
    twin = Twin(optimizer="rowwise_adagrad_without_eps")
    first = twin.lookup([1]).rows

    # The second one is so small that its square is zero.
    for tiny in (0.0, 1e-30):
        twin.train([1], grads=np.full((1, 4), tiny, np.float32))

    np.testing.assert_array_equal(dj.get(twin.emb, "items", np.array([1])).rows, first)


def test_an_accumulator_of_zero_and_the_smallest_eps_make_no_nan():
    tiny = float(np.finfo(np.float32).smallest_subnormal)
    emb = create(optimizer=dj.optimizers.rowwise_adagrad(0.05, eps=tiny))

    acts, emb = dj.lookup(emb, np.array([1]))
    emb = dj.apply_gradients(emb, acts, np.zeros((1, 4), np.float32))

    np.testing.assert_array_equal(dj.get(emb, "items", np.array([1])).rows, acts.rows)


@pytest.mark.parametrize("name", [n for n in ALL_OPTIMIZERS if not n.startswith("from_optax")])
def test_the_learning_rate_may_follow_the_step(name):
    twin = Twin(optimizer=name)
    rate = optax.piecewise_constant_schedule(0.5, {2: 0.1})

    for step in range(4):
        acts = twin.lookup([1, 2])
        grads = random_grads((2, 4), step)
        with jax.numpy_dtype_promotion("standard"):
            twin.emb = dj.apply_gradients(twin.emb, acts, grads, learning_rate=rate)
        twin.oracle.apply([1, 2], grads, learning_rate=0.5 if step < 2 else 0.05)

    twin.check()


def test_every_optimizer_of_the_library_has_a_reference():
    makers = {
        name
        for name, value in vars(dj.optimizers).items()
        if inspect.isfunction(value) and value.__module__.startswith(dj.optimizers.__name__)
    }

    assert {m for m in makers if not m.startswith("_")} <= set(ALL_OPTIMIZERS)


def test_every_optimizer_clips_in_the_contract():
    makers = {type(rule) for rule, _ in ALL_OPTIMIZERS.values()}
    clipping = {type(rule) for rule, _ in ALL_OPTIMIZERS.values() if rule.max_grad_norm is not None}

    assert clipping == makers


def test_every_optimizer_has_an_update_of_all_rows():
    assert OPTAX.keys() == ALL_OPTIMIZERS.keys()


@pytest.mark.parametrize("name", ALL_OPTIMIZERS)
def test_equal_descriptors_are_equal_and_frozen(name):
    rule = ALL_OPTIMIZERS[name][0]

    assert hash(rule) == hash(rule)
    with pytest.raises(AttributeError):
        rule.learning_rate = 3.0


def test_descriptors_of_equal_numbers_compare_equal():
    assert dj.optimizers.sgd(0.5) == dj.optimizers.sgd(0.5)
    assert dj.optimizers.adam(0.5) != dj.optimizers.adam(0.5, bias_correction="row")


def test_numbers_of_numpy_are_numbers():
    rule = dj.optimizers.adam(np.float32(0.5), eps=np.float32(0.25), weight_decay=np.float64(0.5))

    assert rule == dj.optimizers.adam(0.5, eps=0.25, weight_decay=0.5)
    with pytest.raises(dj.errors.ConfigError, match="eps must be at least"):
        dj.optimizers.adam(0.5, eps=np.bool_(True))
