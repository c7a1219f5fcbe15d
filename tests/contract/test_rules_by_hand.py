"""What single rules promise beyond the contract, in numbers that can be checked by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

import dynemb_jax as dj
from tests.twin import Twin, assert_close, create, random_grads


def zeros(optimizer, dim=2):
    """A table of one feature whose rows begin with 0."""
    return create(dim, optimizer=optimizer, initializer=dj.initializers.constant(0.0))


def train(emb, key, grad, **options):
    """One step of one key."""
    acts, emb = dj.lookup(emb, np.array([key]))
    return dj.apply_gradients(emb, acts, np.array([grad], np.float32), **options)


def read(emb, key):
    """Row and state of one key."""
    found, rows, state = dj.get(emb, "items", np.array([key]))
    assert found.all()
    return rows[0], {name: value[0] for name, value in state.items()}


def test_rmsprop_by_hand():
    rule = dj.optimizers.rmsprop(1.0, decay=0.75, eps=1.0, initial_scale=4.0)

    # nu = 3 + 20 / 4 = 8 and 3 + 0; with eps the roots are 3 and 2.
    emb = train(zeros(rule), 3, [20**0.5, 0])

    row, state = read(emb, 3)
    assert_close(row, [-(20**0.5) / 3, 0])
    assert_close(state["nu"], [8, 3])


@pytest.mark.parametrize("correction", ["global", "row"])
def test_adamw_decays_rows_of_the_batch_and_not_their_moments(correction):
    rule = dj.optimizers.adamw(0.5, weight_decay=0.25, bias_correction=correction)
    emb = dj.assign(zeros(rule), "items", np.array([1, 2]), np.full((2, 2), 8.0))

    emb = train(emb, 1, [0, 0])

    row, state = read(emb, 1)
    np.testing.assert_array_equal(row, [7, 7])  # 8 - 0.5 * 0.25 * 8
    assert not state["mu"].any()
    assert not state["nu"].any()
    np.testing.assert_array_equal(read(emb, 2)[0], [8, 8])


def test_the_learning_rate_of_a_step_is_that_of_its_decay():
    rule = dj.optimizers.adamw(0.5, weight_decay=0.25)
    emb = dj.assign(zeros(rule), "items", np.array([1]), np.full((1, 2), 8.0))

    emb = train(emb, 1, [0, 0], learning_rate=2.0)

    np.testing.assert_array_equal(read(emb, 1)[0], [4, 4])


def test_the_mean_of_squares_of_a_row_is_that_of_the_decayed_gradient():
    rule = dj.optimizers.rowwise_adagrad(1.0, weight_decay=0.5)
    emb = dj.assign(zeros(rule), "items", np.array([1]), np.array([[2.0, 12.0]]))

    # g + w / 2 = [1, 7], whose squares have the mean 25.
    emb = train(emb, 1, [0, 1])

    row, state = read(emb, 1)
    assert state["accumulator"] == 25
    assert_close(row, [2 - 1 / 5, 12 - 7 / 5])


def test_a_decay_of_zero_does_not_look_at_the_row():
    emb = dj.assign(zeros(dj.optimizers.sgd(1.0)), "items", np.array([1]), [[np.inf, 1.0]])

    emb = train(emb, 1, [1, 1])

    np.testing.assert_array_equal(read(emb, 1)[0], [np.inf, 0])


def test_partial_rowwise_adam_by_hand():
    rule = dj.optimizers.partial_rowwise_adam(1.0, b1=0.5, b2=0.75, bias_correction="row")

    # The corrections undo the decays: nu / (1 - b2) = 25, mu / (1 - b1) = g.
    emb = train(zeros(rule), 3, [7, 1], step=10**6)

    row, state = read(emb, 3)
    assert_close(row, [-7 / 5, -1 / 5])
    np.testing.assert_array_equal(state["mu"], [3.5, 0.5])
    assert (state["nu"], state["count"]) == (6.25, 1)
    assert (state["nu"].dtype, state["count"].dtype) == (np.float32, np.int32)


def test_each_number_of_a_row_is_assigned_by_its_own_name():
    rule = dj.optimizers.partial_rowwise_adam(1.0, bias_correction="row")
    emb = zeros(rule)
    state = {
        "count": np.array([2**31 - 1, -(2**31), 7]),
        "nu": np.array([0.5, -0.0, np.inf]),
        "mu": np.arange(6.0).reshape(3, 2),
    }

    emb = dj.assign(emb, "items", np.arange(3), np.zeros((3, 2)), state)

    got = dj.get(emb, "items", np.arange(3)).state
    assert list(got) == ["mu", "nu", "count"]
    for name, value in state.items():
        np.testing.assert_array_equal(got[name], value)


@pytest.mark.parametrize("name", ["rmsprop_without_eps", "ftrl_without_start"])
def test_a_row_without_a_gradient_stays_where_nothing_can_be_divided_by(name):
    twin = Twin(optimizer=name)
    first = twin.lookup([1]).rows

    # The second one is so small that its square is zero.
    for tiny in (0.0, 1e-30):
        twin.train([1], grads=np.full((1, 4), tiny, np.float32))

    np.testing.assert_array_equal(dj.get(twin.emb, "items", np.array([1])).rows, first)


def test_partial_rowwise_adam_without_eps_stays_until_it_has_a_gradient():
    emb = create(4, optimizer=dj.optimizers.partial_rowwise_adam(0.1, eps=0.0))
    first = read(dj.lookup(emb, np.array([1]))[1], 1)[0]
    emb = dj.resync(emb)

    emb = train(emb, 1, [0, 0, 0, 0])

    np.testing.assert_array_equal(read(emb, 1)[0], first)


def test_lamb_by_hand():
    rule = dj.optimizers.lamb(0.5, b1=0.5, b2=0.75, eps=0.0, weight_decay=1.0)
    emb = dj.assign(zeros(rule), "items", np.array([3]), np.array([[3.0, 4.0]]))

    # The first step of Adam is the sign of g, so u = [1, -1] + [3, 4] = [4, 3], as long as w.
    emb = train(emb, 3, [8, -2])

    row, state = read(emb, 3)
    assert_close(row, [3 - 0.5 * 4, 4 - 0.5 * 3])
    assert_close(state["mu"], [4, -1])
    assert_close(state["nu"], [16, 1])


def test_a_row_of_zeros_leaves_them_with_lamb_and_one_without_a_gradient_stays():
    rule = dj.optimizers.lamb(0.5, eps=0.0)
    emb = dj.assign(zeros(rule), "items", np.array([1]), np.array([[3.0, 4.0]]))

    emb = train(train(emb, 1, [0, 0]), 2, [2, 0], step=0)

    np.testing.assert_array_equal(read(emb, 1)[0], [3, 4])
    assert_close(read(emb, 2)[0], [-0.5, 0])  # the ratio is 1


def test_the_norm_that_is_clipped_is_that_of_the_sum_of_the_row():
    emb = zeros(dj.optimizers.sgd(1.0, max_grad_norm=5.0))
    ids = np.array([1, 2, 1, 3, 3])
    grads = np.array([[3, 4], [3, 4], [3, 4], [9, 9], [-8, -8]], np.float32)

    acts, emb = dj.lookup(emb, ids)
    emb = dj.apply_gradients(emb, acts, grads)

    # Twice [3, 4] is halved; once is no longer than allowed; 9 - 8 is short, though its parts are
    # not.
    for key, row in ((1, [-3, -4]), (2, [-3, -4]), (3, [-1, -1])):
        assert_close(read(emb, key)[0], row)


def test_a_gradient_whose_square_is_beyond_float32_is_clipped():
    emb = train(zeros(dj.optimizers.sgd(1.0, max_grad_norm=5.0)), 1, [3e30, 4e30])

    assert_close(read(emb, 1)[0], [-3, -4])


def test_the_gradient_of_the_caller_is_not_clipped_in_place():
    emb = zeros(dj.optimizers.sgd(1.0, max_grad_norm=1.0))
    acts, emb = dj.lookup(emb, np.array([1]))
    grads = jnp.full((1, 2), 7.0)

    emb = dj.apply_gradients(emb, acts, grads)

    np.testing.assert_array_equal(grads, [[7, 7]])
    assert np.linalg.norm(read(emb, 1)[0]) == pytest.approx(1)


def test_ftrl_by_hand():
    rule = dj.optimizers.ftrl(1.0, l1=1.0, l2=1.0, beta=1.0, initial_accumulator=0.0)

    # n = [9, 1], q = 1 + [3, 1]. The paper's z is [3, 1]: the second column rests.
    emb = train(zeros(rule), 5, [3, 1])
    row, state = read(emb, 5)
    assert_close(row, [-2 / 5, 0])
    assert_close(state["z"], [3 - 4 * 2 / 5, 1])
    np.testing.assert_array_equal(state["n"], [9, 1])

    # n = [25, 1], q = 1 + [5, 1]. The paper's z is [3 + 4 + (6 - 4) * 2 / 5, 1].
    emb = train(emb, 5, [4, 0])
    row, state = read(emb, 5)
    assert_close(row, [-6.8 / 7, 0])
    assert_close(state["z"], [7.8 - 6 * 6.8 / 7, 1])
    np.testing.assert_array_equal(state["n"], [25, 1])


def test_a_large_l1_makes_columns_exactly_zero_and_gradients_free_them():
    rule = dj.optimizers.ftrl(0.5, l1=10.0)
    emb = create(2, optimizer=rule, initializer=dj.initializers.constant(0.25))

    emb = train(emb, 1, [1, -1])
    np.testing.assert_array_equal(read(emb, 1)[0], [0, 0])
    emb = train(emb, 1, [30, 1])

    row, _ = read(emb, 1)
    assert row[0] < 0
    assert row[1] == 0


def test_ftrl_keeps_first_values_until_a_penalty_or_a_gradient_moves_them():
    free, bound = dj.optimizers.ftrl(0.1), dj.optimizers.ftrl(0.1, l2=0.5)
    first = read(dj.lookup(create(optimizer=free), np.array([1]))[1], 1)[0]
    q = 0.1**0.5 / 0.1

    moved = [read(train(create(optimizer=rule), 1, [0] * 4), 1)[0] for rule in (free, bound)]

    assert first.all()
    np.testing.assert_array_equal(moved[0], first)
    assert_close(moved[1], first * q / (q + 0.5))


def test_ftrl_without_penalties_is_adagrad():
    rules = (
        dj.optimizers.ftrl(0.05, initial_accumulator=0.5),
        dj.optimizers.adagrad(0.05, initial_accumulator=0.5, eps=0.0),
    )
    tables = [create(optimizer=rule) for rule in rules]

    for step in range(5):
        tables = [train(emb, 1, random_grads(4, step)) for emb in tables]

    assert_close(*(read(emb, 1)[0] for emb in tables))


def test_a_schedule_of_ftrl_moves_no_row_by_itself():
    emb = create(optimizer=dj.optimizers.ftrl(0.5))
    emb = train(emb, 1, [1, -2, 3, -4])
    before = read(emb, 1)[0]

    for rate in (0.25, 1e-3, 0.0, 0.5):
        emb = train(emb, 1, [0, 0, 0, 0], learning_rate=rate)

    np.testing.assert_array_equal(read(emb, 1)[0], before)


def test_ftrl_at_a_learning_rate_of_zero_moves_no_row():
    emb = create(optimizer=dj.optimizers.ftrl(0.5, l1=0.125, l2=0.5))
    emb = train(emb, 1, [1, -2, 3, 0.0625])
    before = read(emb, 1)[0]

    emb = train(emb, 1, [8, 8, 8, 8], learning_rate=0.0)

    np.testing.assert_array_equal(read(emb, 1)[0], before)
