"""Keys are let in when their rule says so; until then their ids are refused, and counted."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynemb_jax as dj
from tests.bounded import BoundedTwin
from tests.oracle.admission import Counted, Drawn, Sketched
from tests.plugins import ADMISSIONS
from tests.twin import SAME_LOW_HALF, SPECIAL_KEYS, assert_close, create, keys, u64

RULES = [name for name in ADMISSIONS if name != "everyone"]


def gated(rule, **config):
    """Embeddings of one table "items" that learns by 1 times the gradient."""
    return create(2, admission=rule, optimizer=dj.optimizers.sgd(1.0), **config)


def present(emb, ids):
    return dj.contains(emb, "items", keys(ids)).tolist()


def predicted(oracle, batches):
    """Ids served of each batch, of a table that only admission keeps keys out of."""
    inside, served = set(), []
    for lookup, batch in enumerate(batches, start=1):
        absent = [key for key in batch if key not in inside]
        judged = iter(oracle.judge(absent, lookup))
        served.append([key in inside or next(judged) for key in batch])
        oracle.remember(absent)
        inside |= {key for key, here in zip(batch, served[-1], strict=True) if here}
    return served


def served(emb, batches):
    """The same of the library: a refused id has the missing row."""
    out = []
    for batch in batches:
        acts, emb = dj.lookup(emb, dj.keys(np.array(batch, np.uint64)))
        out.append((np.asarray(acts.rows)[:, 0] != 9.0).tolist())
    return out, emb


@pytest.mark.parametrize("threshold", [1, 2, 3, 255])
def test_the_threshold_th_id_of_a_batch_is_trained_and_the_earlier_ones_are_not(threshold):
    emb = gated(dj.admission.frequency(threshold, counters=1 << 14), missing_row=7.0)
    ids = np.full(300, 5)

    acts, emb = dj.lookup(emb, ids)
    emb = dj.apply_gradients(emb, acts, np.ones((300, 2), np.float32))

    first = np.asarray(acts.rows[-1])
    assert (np.asarray(acts.rows[: threshold - 1]) == 7.0).all()
    assert (np.asarray(acts.rows[threshold - 1 :]) == first).all()
    assert_close(dj.get(emb, "items", [5]).rows[0], first - (301 - threshold), rtol=1e-4)
    stats = dj.stats(emb)["items"]
    assert (stats.inserted, stats.hits) == (1, 300 - threshold)
    assert stats.refused["admission"] == threshold - 1


@pytest.mark.parametrize("threshold", [2, 3, 7])
def test_ids_of_several_batches_count_together(threshold):
    emb = gated(dj.admission.frequency(threshold, counters=1 << 14))

    for turn in range(1, threshold + 1):
        assert present(emb, [5]) == [False]
        acts, emb = dj.lookup(emb, np.array([5]))
        emb = dj.apply_gradients(emb, acts, np.ones((1, 2), np.float32))
        assert np.asarray(acts.rows).any() == (turn == threshold)

    assert present(emb, [5]) == [True]
    assert dj.stats(emb)["items"].updated_rows == 1


def test_features_of_one_table_count_together_in_their_order():
    table = dj.TableConfig("items", 2, admission=dj.admission.frequency(3, counters=1 << 14))
    emb = dj.create({"a": dj.FeatureConfig(table), "b": dj.FeatureConfig(table)})

    acts, emb = dj.lookup(emb, {"a": np.array([[5], [6]]), "b": np.array([5, 6, 5])})

    assert not np.asarray(acts.rows["a"]).any()
    assert np.asarray(acts.rows["b"]).any(axis=1).tolist() == [False, False, True]
    assert present(emb, [5, 6]) == [True, False]


@pytest.mark.parametrize("rule", RULES)
def test_any_stream_is_admitted_as_the_oracle_predicts(rule):
    rng = np.random.default_rng(0)
    pool = u64([*SPECIAL_KEYS, *SAME_LOW_HALF, *range(100)]).tolist()
    batches = [[int(k) for k in rng.choice(np.array(pool, np.uint64), 40)] for _ in range(30)]
    library, reference = ADMISSIONS[rule]

    out, emb = served(gated(library, missing_row=9.0), batches)

    expected = predicted(reference(), batches)
    assert out == expected
    assert 0 < dj.stats(emb)["items"].refused["admission"] < 1200


def test_counts_are_exact_where_counters_suffice():
    rng = np.random.default_rng(0)
    batches = [(rng.zipf(1.3, 64) % 200).tolist() for _ in range(20)]

    out, _ = served(gated(dj.admission.frequency(4), missing_row=9.0), batches)

    assert out == predicted(Counted(4), batches)


def test_collisions_let_keys_in_early_and_never_late():
    rng = np.random.default_rng(0)
    batches = [rng.integers(0, 1000, 50).tolist() for _ in range(20)]  # as many as are never halved

    # 1024 counters would be halved; ids of 20 batches are fewer than a sixteenth of these.
    crowded = predicted(Sketched(3, 1 << 14), batches)
    exact = predicted(Counted(3), batches)
    out, _ = served(gated(dj.admission.frequency(3, counters=1 << 14), missing_row=9.0), batches)

    assert out == crowded
    for ours, counted in zip(out, exact, strict=True):
        assert all(o >= c for o, c in zip(ours, counted, strict=True))


def test_few_keys_that_come_once_are_let_in_by_collisions():
    emb = gated(dj.admission.frequency(2, counters=1 << 16))
    new = np.random.default_rng(0).permutation(1 << 16)[: 8 * 4096]  # halved eight times

    for batch in np.array_split(new, 64):
        _, emb = dj.lookup(emb, batch)

    assert dj.stats(emb)["items"].rows < 0.01 * new.size


def test_counts_fade():
    emb = gated(dj.admission.frequency(2, counters=1 << 12))
    _, emb = dj.lookup(emb, np.array([5]))
    _, emb = dj.lookup(emb, np.arange(1000, 1000 + 256))  # a sixteenth of the counters

    _, emb = dj.lookup(emb, np.array([5]))
    assert present(emb, [5]) == [False]

    _, emb = dj.lookup(emb, np.array([5]))
    assert present(emb, [5]) == [True]


def test_counts_are_halved_after_exactly_a_sixteenth_of_the_counters():
    counters = 1 << 10  # halved by every 64th id
    batches = [[5]] + [[1000 + turn] for turn in range(62)] + [[5], [5]]  # seen once, then twice
    late = [[5]] + [[1000 + turn] for turn in range(63)] + [[5], [5]]  # halved before the second
    again = [*late[:64], *([2000 + turn] for turn in range(64)), [5], [5]]
    rule = dj.admission.frequency(2, counters=counters)

    ours = [served(gated(rule, missing_row=9.0), some)[0] for some in (batches, late, again)]

    expected = [predicted(Sketched(2, counters), some) for some in (batches, late, again)]
    assert ours == expected
    assert [one[-2:] for one in ours] == [[[True], [True]], [[False], [True]], [[False], [True]]]


def test_many_copies_of_few_keys_take_few_rows():
    emb = gated(dj.admission.frequency(3))

    _, emb = dj.lookup(emb, np.tile(np.arange(10), 10_000))

    stats = dj.stats(emb)["items"]
    assert (stats.rows, stats.growths, stats.refused["admission"]) == (10, 0, 20)


def test_a_key_that_is_there_needs_no_admission():
    emb = gated(dj.admission.frequency(200))
    emb = dj.assign(emb, "items", np.array([5]), np.ones((1, 2), np.float32))

    acts, emb = dj.lookup(emb, np.array([5]))

    assert_close(acts.rows, np.ones((1, 2)))
    assert dj.stats(emb)["items"].refused["admission"] == 0


def test_a_refused_id_may_have_the_first_values_and_still_takes_no_update():
    emb = gated(dj.admission.frequency(2), missing_row="initializer")

    early, emb = dj.lookup(emb, np.array([5]))
    emb = dj.apply_gradients(emb, early, np.ones((1, 2), np.float32))
    late, emb = dj.lookup(emb, np.array([5]))

    assert np.asarray(early.rows).any()
    np.testing.assert_array_equal(early.rows, late.rows)


def test_a_pool_takes_refused_ids_for_the_missing_row():
    emb = create(2, combiner="mean", admission=dj.admission.frequency(2), missing_row=8.0)
    acts, emb = dj.lookup(emb, np.array([[1, 1, 2, 2], [3, 3, 3, 4]]))
    emb = dj.apply_gradients(emb, acts, np.ones((2, 2), np.float32))

    rows = np.asarray(acts.rows)
    assert ((rows > 3.0) & (rows < 5.0)).all()  # half of each bag is 8, the rest within 1/sqrt(2)
    assert dj.stats(emb)["items"].updated_rows == 3


def test_evaluation_counts_nothing():
    emb = gated(dj.admission.frequency(2))

    for _ in range(5):
        dj.lookup(emb, np.array([5, 5]), train=False)
    _, emb = dj.lookup(emb, np.array([5]))

    assert present(emb, [5]) == [False]


@pytest.mark.parametrize("rule", RULES)
def test_a_lookup_that_is_replayed_counts_once_and_gives_the_same_rows(rule):
    library, reference = ADMISSIONS[rule]
    batches = [[1, 1, 2, 3, 1, 3], [1, 2, 2, 4, 3, 4], [4, 4, 2, 3, 1, 4]]
    emb = gated(library, missing_row=9.0)

    seen = []
    for batch in batches:

        def loss(x, emb, batch=batch):
            def inner(x, emb):
                acts, emb = dj.lookup(emb, jnp.array(batch))
                # sin keeps its argument for the backward pass, so rows are looked up again there.
                return jnp.sum(jnp.sin(acts.rows * x)), (acts, emb)

            return jax.checkpoint(inner)(x, emb)

        slope, (acts, emb) = jax.grad(loss, has_aux=True)(jnp.float32(1.0), emb)
        rows = np.asarray(acts.rows)
        assert_close(slope, np.sum(np.cos(rows) * rows), rtol=1e-4)
        seen.append((rows[:, 0] != 9.0).tolist())
        emb = dj.apply_gradients(emb, acts, np.zeros((6, 2), np.float32))

    assert seen == predicted(reference(), batches)
    stats = dj.stats(emb)["items"]
    assert stats.lookups == 3
    assert stats.ids == 18 == stats.hits + stats.inserted + sum(stats.refused.values())


def test_a_step_in_scan_is_one_batch_a_turn():
    emb = gated(dj.admission.frequency(3))

    def turn(emb, ids):
        acts, emb = dj.lookup(emb, ids)
        return dj.apply_gradients(emb, acts, jnp.ones_like(acts.rows)), acts.rows

    emb, rows = jax.jit(lambda emb: jax.lax.scan(turn, emb, jnp.full((5, 1), 7)))(emb)

    assert np.asarray(rows).any(axis=(1, 2)).tolist() == [False, False, True, True, True]
    assert dj.stats(emb)["items"].updated_rows == 3


def test_counters_take_the_bytes_that_are_documented():
    for asked, got in ((1, 32), (32, 32), (33, 64), (1000, 1024), (1 << 20, 1 << 20)):
        emb = gated(dj.admission.frequency(2, counters=asked))
        assert dj.stats(emb)["items"].admission_bytes == got
    assert dj.stats(gated(dj.admission.probability(0.5)))["items"].admission_bytes == 0
    assert dj.stats(gated(dj.admission.frequency(2)))["items"].admission_bytes == 1 << 24


def test_an_erased_key_is_remembered_and_clear_forgets_all_counts():
    emb = gated(dj.admission.frequency(2))
    _, emb = dj.lookup(emb, np.array([5, 5]))

    emb = dj.erase(emb, "items", np.array([5]))
    _, emb = dj.lookup(emb, np.array([5]))
    assert present(emb, [5]) == [True]

    emb = dj.clear(emb, "items")
    _, emb = dj.lookup(emb, np.array([5]))
    assert present(emb, [5]) == [False]


def test_a_batch_that_fails_counts_nothing():
    policy = dj.eviction.lru(max_rows=2)
    emb = gated(dj.admission.frequency(2), eviction=policy, on_full="error")
    _, emb = dj.lookup(emb, np.array([1, 1, 2, 2]))

    with pytest.raises(dj.errors.TableFullError):
        dj.lookup(emb, np.array([3, 3, 4]))
    emb = dj.resync(emb)
    before = dj.stats(emb)["items"]
    emb = dj.erase(emb, "items", np.array([1, 2]))
    _, emb = dj.lookup(emb, np.array([4, 3]))

    assert (before.ids, before.refused["admission"]) == (4, 2)
    assert present(emb, [3, 4]) == [False, False]


def test_keys_that_are_not_admitted_evict_nobody():
    twin = BoundedTwin("lru", 8, admission="second_id")
    twin.train(np.repeat(np.arange(8), 2))

    twin.train(range(100, 130))
    assert twin.stats.evicted == 0
    twin.train([100, 101, 100])

    twin.check(range(130))
    assert twin.stats.evicted == 2


@pytest.mark.parametrize("p", [1e-3, 0.25, 1.0])
def test_a_share_of_p_of_new_keys_is_admitted_at_first_sight(p):
    emb = gated(dj.admission.probability(p))
    n = 40_000

    _, emb = dj.lookup(emb, np.arange(n))

    spread = np.sqrt(n * p * (1 - p))
    assert abs(dj.stats(emb)["items"].rows - n * p) <= 4 * spread


def test_draws_differ_between_lookups_tables_and_seeds_and_not_between_runs():
    def drawn(name, seed):
        emb = create(1, name=name, seed=seed, admission=dj.admission.probability(0.5))
        out = []
        for turn in range(2):
            ids = np.arange(64) + 64 * turn
            _, emb = dj.lookup(emb, ids)
            out.append(dj.contains(emb, name, ids).tolist())
        return out

    runs = [drawn("items", 0), drawn("users", 0), drawn("items", 1)]

    assert drawn("items", 0) == runs[0]
    assert runs[0] == predicted(Drawn(0.5), [list(range(64)), list(range(64, 128))])
    assert len({str(batch) for run in runs for batch in run}) == 6
