"""The judge is judged: known answers, an independent library, and finite differences."""

import numpy as np
import pytest
import scipy.special

from tests.oracle import optimizers, pooling, row_init
from tests.oracle.dict_table import DictTable, OracleFullError
from tests.oracle.philox import KNOWN_ANSWERS, philox4x32


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN_ANSWERS)
def test_philox_gives_the_published_answers(counter, key, words):
    assert tuple(philox4x32(np.array(counter, np.uint64), key)) == words


def test_philox_of_many_counters_is_philox_of_each():
    counters = np.arange(24, dtype=np.uint64).reshape(2, 3, 4)

    together = philox4x32(counters, (5, 6))

    np.testing.assert_array_equal(together[1, 2], philox4x32(counters[1, 2], (5, 6)))


def test_hashes_give_the_published_answers():
    assert row_init.splitmix64(0) == 0xE220A8397B1DCDAF
    assert row_init.fnv1a64(b"") == 0xCBF29CE484222325
    assert row_init.fnv1a64(b"foobar") == 0x85944171F73967E8


def test_normal_quantile_agrees_with_scipy():
    p = np.array([2.0**-33, 1e-6, 0.01, 0.3, 0.4999999])

    np.testing.assert_allclose(row_init._quantile(p), scipy.special.ndtri(p), rtol=1e-12)


@pytest.mark.parametrize("combiner", pooling.COMBINERS)
@pytest.mark.parametrize("weighted", [False, True])
def test_pooling_derivatives_equal_finite_differences(combiner, weighted):
    rng = np.random.default_rng(0)
    v, ct = rng.normal(size=(2, 4, 3)), rng.normal(size=(2, 3))
    present = np.array([[1, 1, 0, 1], [1, 0, 0, 0]], bool)
    w = rng.uniform(0.5, 2.0, (2, 4)) if weighted else np.ones((2, 4))
    h = 1e-6

    ct_v, ct_w = pooling.pool_vjp(combiner, v, ct, present, w)

    def slope(dv, dw):
        ahead = pooling.pool(combiner, v + h * dv, present, w + h * dw)
        behind = pooling.pool(combiner, v - h * dv, present, w - h * dw)
        return ((ahead - behind) * ct).sum() / (2 * h)

    dv, dw = rng.normal(size=v.shape), rng.normal(size=w.shape)
    assert slope(dv, np.zeros_like(w)) == pytest.approx((ct_v * dv).sum(), rel=1e-6)
    assert slope(np.zeros_like(v), dw) == pytest.approx((ct_w * dw).sum(), rel=1e-6, abs=1e-8)


def test_a_bag_without_weight_pools_to_zero_without_gradient():
    v, ct = np.ones((1, 2, 3)), np.ones((1, 3))

    for combiner in ("mean", "sqrtn"):
        assert not pooling.pool(combiner, v, np.zeros((1, 2))).any()
        assert not any(g.any() for g in pooling.pool_vjp(combiner, v, ct, np.zeros((1, 2))))


def small_table(**options):
    return DictTable(
        "t", 2, optimizer=optimizers.Sgd(0.5), first_rows=row_init.Constant(1.0), **options
    )


def test_a_step_by_hand():
    table = small_table()

    table.lookup([3, 4, 3])
    table.apply([3, 4, 3], [[1, 2], [10, 20], [3, 4]])

    np.testing.assert_array_equal(table.values([3, 4, 5]), [[-1, -2], [-4, -9], [0, 0]])
    assert (table.counters["hits"], table.counters["inserted"]) == (1, 2)


def test_a_full_table_refuses_whole_or_drops():
    whole, dropping = small_table(max_rows=2), small_table(max_rows=2, on_full="drop")

    with pytest.raises(OracleFullError):
        whole.lookup([1, 2, 3])
    out = dropping.lookup([1, 2, 3, 1])

    assert not whole.rows
    assert not whole.counters
    np.testing.assert_array_equal(out, [[1, 1], [1, 1], [0, 0], [1, 1]])
    assert dropping.counters["refused"] == 1


def test_momentum_by_hand():
    for nesterov, moved in ((False, [2, 2 + 4]), (True, [3, 3 + 5])):
        rule = optimizers.Momentum(momentum=0.5, nesterov=nesterov)
        row, state = np.zeros(1), rule.initial_state(1)

        row, state = rule.update(row, state, np.array([2.0]), 1.0, 0)
        first = -row[0]
        row, state = rule.update(row, state, np.array([3.0]), 1.0, 1)

        # The trace is 2, then 3 + 1; one step ahead 2 + 1, then 3 + 2.
        assert state["trace"] == 4
        assert [first, -row[0]] == moved


def test_rowwise_adagrad_by_hand():
    rule = optimizers.RowwiseAdagrad(initial_accumulator=11.0, eps=1.0)

    row, state = rule.update(np.zeros(2), rule.initial_state(2), np.array([7.0, 1.0]), 1.0, 0)

    # 11 + (49 + 1) / 2 = 36
    np.testing.assert_allclose(row, [-1, -1 / 7])
    assert state["accumulator"] == 36


def test_rmsprop_by_hand():
    rule = optimizers.Rmsprop(decay=0.75, eps=1.0, initial_scale=4.0)

    row, state = rule.update(np.zeros(1), rule.initial_state(1), np.array([20**0.5]), 1.0, 0)

    # 3 + 20 / 4 = 8
    np.testing.assert_allclose(row, [-(20**0.5) / 3])
    np.testing.assert_allclose(state["nu"], [8])


def test_decays_by_hand():
    row, grad = np.array([8.0]), np.array([1.0])

    l2, _ = optimizers.L2Decay(optimizers.Sgd(), 0.25).update(row, {}, grad, 0.5, 0)
    apart, _ = optimizers.DecoupledDecay(optimizers.Sgd(), 0.25).update(row, {}, grad, 0.5, 0)

    assert l2 == apart == 8 - 0.5 * (1 + 2)


def test_partial_rowwise_adam_by_hand():
    rule = optimizers.PartialRowwiseAdam(b1=0.5, b2=0.75, eps=0.0)

    row, state = rule.update(np.zeros(2), rule.initial_state(2), np.array([7.0, 1.0]), 1.0, 0)

    np.testing.assert_allclose(row, [-7 / 5, -1 / 5])
    assert state["nu"] == 25 / 4


def test_ftrl_by_hand():
    rule = optimizers.Ftrl(l1=1.0, l2=1.0, beta=1.0, initial_accumulator=0.0)

    row, state = rule.update(np.zeros(2), rule.initial_state(2), np.array([3.0, 1.0]), 1.0, 0)
    np.testing.assert_allclose(row, [-2 / 5, 0])
    row, state = rule.update(row, state, np.array([4.0, 0.0]), 1.0, 1)

    # The paper's z is 3 + 4 + (6 - 4) * 2 / 5, and 1.
    np.testing.assert_allclose(row, [-6.8 / 7, 0])
    np.testing.assert_allclose(state["z"] - 6 * row, [7.8, 1])
    np.testing.assert_array_equal(state["n"], [25, 1])


def test_adam_forgets_its_start_by_group_step_or_by_row():
    grad, state = np.array([2.0]), {"mu": np.zeros(1), "nu": np.zeros(1)}
    late, _ = optimizers.Adam().update(np.zeros(1), state, grad, 0.01, 10**6)
    by_row, _ = optimizers.Adam(bias_correction="row").update(
        np.zeros(1), state | {"count": np.int32(0)}, grad, 0.01, 10**6
    )

    assert by_row[0] == pytest.approx(-0.01)
    assert late[0] == pytest.approx(-0.01 * 0.1 / np.sqrt(0.001))
