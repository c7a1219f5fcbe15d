"""deterministic=True: two runs of a program give the same bits, whatever numbers rows have.

Without it a GPU sums equal keys' gradients in an order that is chance, and these tests fail there:
the order of a hundred thousand terms shows in the last bits of nearly every column. The CPU always
sums in the order of the ids.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynemb_jax as dj
from tests.oracle import pooling, ragged, row_init
from tests.oracle.dict_table import DictTable
from tests.oracle.large_batches import LargeBatchTable
from tests.plugins import ALL_OPTIMIZERS
from tests.twin import assert_close, random_grads

VOCABULARY = np.arange(2500)
BAGS, LENGTH = 60, 7


def create(*features):
    return dj.create([*features], deterministic=True)


def renumbered(emb):
    """The same collection, but its keys are there, in rows that other runs give to others."""
    rng = np.random.default_rng(99)
    plain = [f.config.combiner is None for f in emb.group.features]
    for part in (1, 3):
        ids = [rng.permutation(VOCABULARY)[: VOCABULARY.size // part] for _ in plain]
        _, emb = dj.lookup(emb, [x if one else None for x, one in zip(ids, plain, strict=True)])
        for table in emb.tables:
            emb = dj.erase(emb, table, VOCABULARY[part::7])
    return emb


def bits(arrays):
    return [np.ascontiguousarray(one).view(np.uint8) for one in jax.tree.leaves(arrays)]


def held(emb, keys):
    """All that get tells of each table's keys, as bytes."""
    got = [dj.get(emb, table, some) for table, some in keys.items()]
    assert all(one.found.all() for one in got)
    return bits([(one.rows, dict(one.state)) for one in got])


def assert_same_bits(first, *others):
    assert any(part.any() for part in first)
    for other in others:
        for one, again in zip(first, other, strict=True):
            np.testing.assert_array_equal(one, again)


def mixed_batch(seed):
    """Ids, padded bags, ragged bags, nothing for a table, and ids of one more table."""
    rng = np.random.default_rng(seed)

    def draw(count):
        return (rng.zipf(1.2, count) % VOCABULARY.size).astype(np.int32)

    lengths = rng.integers(0, LENGTH + 1, BAGS)
    splits = np.cumsum([0, *rng.integers(0, 2 * LENGTH, BAGS)])
    splits[BAGS // 2 :] += 300  # one bag lies in several chunks
    capacity = int(splits[-1]) + 5
    weights = rng.random(BAGS * LENGTH).astype(np.float32).reshape(BAGS, LENGTH)
    return [
        draw(2500),
        dj.Padded(draw(BAGS * LENGTH).reshape(BAGS, LENGTH), lengths, weights=weights),
        dj.Ragged(draw(capacity), splits.astype(np.int32), rng.random(capacity).astype(np.float32)),
        np.zeros(0, np.int32),
        draw(900),
    ]


def mixed_tables(dim, rule):
    one = dj.TableConfig("one", dim, optimizer=rule, initializer=dj.initializers.uniform())
    none, other = dj.TableConfig("none", 3), dj.TableConfig("other", 5)
    features = [dj.FeatureConfig(one, combiner) for combiner in (None, "mean", "sqrtn")]
    return create(*features, dj.FeatureConfig(none), dj.FeatureConfig(other))


def mixed_grads(dim, seed):
    shapes = [(2500, dim), (BAGS, dim), (BAGS, dim), (0, 3), (900, 5)]
    return [random_grads(shape, seed) for shape in shapes]


def gradients_by_id(batch, grads, dim):
    """Ids of table "one" in a batch, and the gradient of each."""
    plain, padded, bags = batch[:3]
    present = np.arange(LENGTH) < np.asarray(padded.lengths)[:, None]
    weights, splits = np.asarray(bags.weights), np.asarray(bags.row_splits)
    no_rows = np.zeros((BAGS, LENGTH, dim)), np.zeros((weights.size, dim))
    of_padded, _ = pooling.pool_vjp(
        "mean", no_rows[0], grads[1], present, np.asarray(padded.weights)
    )
    of_bags, _ = ragged.pool_vjp("sqrtn", no_rows[1], grads[2], splits, weights)
    ids = [plain, np.asarray(padded.ids)[present], np.asarray(bags.ids)[: splits[-1]]]
    return np.concatenate(ids), np.concatenate(
        [grads[0], of_padded[present], of_bags[: splits[-1]]]
    )


@pytest.mark.parametrize(
    ("optimizer", "dim"),
    [
        ("sgd", 128),
        ("sgd", 3),
        ("momentum", 64),
        ("adagrad", 4),
        ("rowwise_adagrad", 260),
        ("adam", 32),
        ("adam_row", 6),
        ("ftrl", 20),
        ("lamb", 130),
        ("sgd_clip", 64),
        ("adam_clip", 132),
        ("lamb_clip", 130),
        ("from_optax", 8),
        ("from_optax_lamb", 6),
        ("from_optax_clip", 64),
    ],
)
def test_mixed_features_of_several_lookups_give_the_same_bits_and_the_dictionarys_rows(
    optimizer, dim
):
    rule, reference = ALL_OPTIMIZERS[optimizer]
    oracle = DictTable("one", dim, optimizer=reference, first_rows=row_init.Uniform())
    steps = [  # of two lookups and one update
        [(mixed_batch(2 * step + part), mixed_grads(dim, 2 * step + part)) for part in range(2)]
        for step in range(2)
    ]
    for step in steps:
        parts = [gradients_by_id(*lookup, dim) for lookup in step]
        ids, by_id = (np.concatenate(part) for part in zip(*parts, strict=True))
        oracle.lookup(ids)
        oracle.apply(ids, by_id)
    trained = {"one": np.array(list(oracle.rows)), "other": steps[0][0][0][4]}

    def run(emb):
        seen = []
        for step in steps:
            acts = []
            for batch, _ in step:
                one, emb = dj.lookup(emb, batch)
                acts.append(one)
            emb = dj.apply_gradients(emb, acts, [grads for _, grads in step])
            seen.append([one.rows for one in acts])
        found, _ = dj.lookup(emb, steps[0][0][0], train=False)
        return emb, [*held(emb, trained), *bits([seen, found.rows])]

    (emb, first), (_, again) = (run(mixed_tables(dim, rule)) for _ in range(2))
    _, moved = run(renumbered(mixed_tables(dim, rule)))

    assert_same_bits(first, again, moved)
    got = dj.get(emb, "one", trained["one"])
    assert_close(got.rows, oracle.values(trained["one"]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("copies", [1, 2, 33, 1025, 100_000])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_any_number_of_equal_ids_is_summed_in_one_order(optimizer, copies):
    dim = 12
    rule, reference = ALL_OPTIMIZERS[optimizer]
    oracle = LargeBatchTable("items", dim, optimizer=reference, first_rows=row_init.Uniform())
    rng = np.random.default_rng(copies)
    steps = []
    for _ in range(2):
        ids = rng.permutation(np.concatenate([np.full(copies, 7), np.arange(300)])).astype(np.int32)
        steps.append((ids, rng.uniform(0.5, 1.5, (ids.size, dim)).astype(np.float32)))
        oracle.lookup(ids)
        oracle.apply(ids, steps[-1][1])

    def run(emb):
        for ids, grads in steps:
            acts, emb = dj.lookup(emb, [ids])
            emb = dj.apply_gradients(emb, acts, [grads])
        return emb, held(emb, {"items": np.arange(300)})

    def table():
        return create(dj.FeatureConfig(dj.TableConfig("items", dim, optimizer=rule)))

    (emb, first), (_, again), (_, moved) = run(table()), run(table()), run(renumbered(table()))

    assert_same_bits(first, again, moved)
    # A sum in pieces of 128: a few hundred roundings of 2**-24 on the way.
    rows = dj.get(emb, "items", np.arange(300)).rows
    np.testing.assert_allclose(rows, oracle.values(np.arange(300)), rtol=2e-5, atol=2e-6)


def test_steps_that_nobody_waits_for_give_the_same_bits():
    batches = [np.random.default_rng(i).zipf(1.1, 30_000) % 20_000 for i in range(6)]
    trained = np.unique(np.concatenate(batches))

    @functools.partial(jax.jit, donate_argnums=0)
    def step(emb, ids, grads):
        acts, emb = dj.lookup(emb, [ids])
        return dj.apply_gradients(emb, acts, [grads])

    def run():
        rule = dj.optimizers.rowwise_adagrad(0.1)
        emb = create(dj.FeatureConfig(dj.TableConfig("items", 8, optimizer=rule)))
        for i, ids in enumerate(batches):
            emb = step(emb, jnp.asarray(ids.astype(np.int32)), random_grads((ids.size, 8), i))
        return held(emb, {"items": trained})

    assert_same_bits(run(), run())


@pytest.mark.parametrize("busy", [60, 6])  # features with ids
def test_more_tables_and_features_than_a_launch_takes_by_value(busy):
    tables = [
        dj.TableConfig(f"t{i}", 2 + i % 3, optimizer=dj.optimizers.sgd(0.5)) for i in range(20)
    ]
    rng = np.random.default_rng(0)
    order = rng.permutation(np.repeat(np.arange(20), 3))
    ids = [rng.integers(0, 40, 100 if i < busy else 0) for i in range(60)]
    grads = [random_grads((ids[i].size, 2 + t % 3), i) for i, t in enumerate(order)]

    trained = {}
    for some, of in zip(ids, order, strict=True):
        if some.size:
            trained[f"t{of}"] = np.unique([*trained.get(f"t{of}", ()), *some])

    def run():
        emb = create(*(dj.FeatureConfig(tables[t]) for t in order))
        acts, emb = dj.lookup(emb, ids)
        emb = dj.apply_gradients(emb, acts, grads)
        return acts, emb, held(emb, trained)

    (acts, emb, first), (_, _, again) = run(), run()

    assert_same_bits(first, again)
    for name, known in trained.items():
        mine = [i for i, of in enumerate(order) if f"t{of}" == name]
        expected = np.zeros((40, acts.rows[mine[0]].shape[1]))
        for i in mine:
            expected[ids[i]] = acts.rows[i]
        for i in mine:
            np.add.at(expected, ids[i], -0.5 * grads[i].astype(np.float64))
        assert_close(dj.get(emb, name, known).rows, expected[known], atol=1e-5)


@pytest.mark.parametrize("combiner", [None, "sum"])
@pytest.mark.parametrize("admission", [None, dj.admission.frequency(2, counters=1 << 12)])
def test_a_full_table_takes_the_keys_that_come_first(admission, combiner):
    rng = np.random.default_rng(0)
    batches = [rng.permutation(np.arange(600 * i, 600 * i + 900).repeat(3)) for i in range(4)]

    def run():
        table = dj.TableConfig(
            "items", 16, max_bytes=150_000, on_full="drop", admission=admission, missing_row=0.25
        )
        emb = create(dj.FeatureConfig(table, combiner))
        for ids in batches:
            shaped = ids if combiner is None else ids.reshape(-1, 3)
            acts, emb = dj.lookup(emb, [shaped])
            emb = dj.apply_gradients(emb, acts, [random_grads(acts.rows[0].shape)])
        return emb

    first, again = run(), run()

    universe = np.arange(3000)
    known, known_again = (dj.contains(emb, "items", universe) for emb in (first, again))
    np.testing.assert_array_equal(known, known_again)
    kept = dj.stats(first)["items"].rows
    assert known.sum() == kept < np.unique(np.concatenate(batches)).size
    if admission is None:
        in_order = dict.fromkeys(np.concatenate(batches).tolist())
        assert set(universe[known]) == set(list(in_order)[:kept])
    assert_same_bits(*(held(emb, {"items": universe[known]}) for emb in (first, again)))


def test_a_refused_update_changes_nothing():
    emb = create(dj.FeatureConfig(dj.TableConfig("items", 4)))
    acts, emb = dj.lookup(emb, [np.arange(50)])
    emb = dj.erase(emb, "items", [3])
    before = held(emb, {"items": np.arange(4, 50)})

    with pytest.raises(dj.errors.StaleStateError):
        dj.apply_gradients(emb, acts, [np.ones((50, 4), np.float32)])

    assert_same_bits(before, held(dj.resync(emb), {"items": np.arange(4, 50)}))
