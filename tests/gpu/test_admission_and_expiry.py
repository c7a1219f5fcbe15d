"""Admission and expiry over many blocks, in queues and in odd calls, are those of the CPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynemb_jax as dj
from tests.bounded import POLICIES, bounded, eviction_of
from tests.gpu.batches import make_step, on_each_platform
from tests.twin import create, random_grads

BATCH = 20_000
COUNTED = (
    "rows",
    "ids",
    "hits",
    "inserted",
    "evicted",
    "expired",
    "padded",
    "refused",
    "admission_bytes",
)
RULES = {
    "second": dj.admission.frequency(2, counters=1 << 22),
    "crowded": dj.admission.frequency(3, counters=1 << 14),  # halved several times a batch
    "fourth": dj.admission.frequency(4, counters=1 << 18),
    "drawn": dj.admission.probability(0.3),
    "everyone": dj.admission.probability(1.0),
}
TIMELESS = [policy for policy in POLICIES if policy != "timestamp"]


@pytest.fixture
def native():
    """The native module; cooperative launches are allowed again after the test."""
    module = pytest.importorskip("dynemb_jax._native_cuda")
    yield module
    module.allow_cooperative_launch(allowed=True)


def counted(emb, name="items"):
    stats = dj.stats(emb)[name]
    assert stats.ids == stats.hits + stats.inserted + sum(stats.refused.values())
    return {one: getattr(stats, one) for one in COUNTED}


def drawn_ids(turn, size=BATCH, vocabulary=60_000):
    """Zipf ids, one key of which is very hot."""
    rng = np.random.default_rng(turn)
    return rng.permutation(rng.zipf(1.1, size) % vocabulary + 7 * turn)


def same(cpu, gpu):
    jax.tree.map(np.testing.assert_array_equal, cpu, gpu)


@pytest.mark.parametrize("max_rows", [None, 3000])
@pytest.mark.parametrize("rule", RULES)
def test_large_batches_are_admitted_as_on_the_cpu(rule, max_rows):
    def run():
        policy = None if max_rows is None else dj.eviction.lru(max_rows, record=1 << 20)
        table = dj.TableConfig(
            "items", 2, admission=RULES[rule], eviction=policy, missing_row=9.0, initial_rows=100
        )
        emb = dj.create(dj.FeatureConfig(table), max_outstanding=1)
        served = []
        for turn in range(6):
            acts, emb = dj.lookup(emb, drawn_ids(turn))
            served.append(np.asarray(acts.rows[:, 0]) != 9.0)
        drained = [] if policy is None else list(dj.drain_evicted(emb, "items"))
        out = counted(emb), served, drained, dj.contains(emb, "items", np.arange(60_100))
        dj.close(emb)
        return out

    cpu, gpu = on_each_platform(run)

    same(cpu, gpu)
    assert sum(cpu[0]["refused"].values()) > 0 or rule == "everyone"


def test_of_many_copies_of_a_new_key_exactly_the_first_are_refused():
    emb = create(2, admission=dj.admission.frequency(200), missing_row=9.0)
    ids = np.full(1 << 18, 5)
    ids[::2] = np.arange(1 << 17) + 1000

    acts, emb = dj.lookup(emb, ids)

    copies = np.asarray(acts.rows)[1::2, 0]
    assert (copies[:199] == 9.0).all()
    assert (copies[199:] == copies[-1]).all()
    assert copies[-1] != 9.0
    stats = dj.stats(emb)["items"]
    assert (stats.rows, stats.refused["admission"]) == (1, 199 + (1 << 17))


def test_tables_with_and_without_a_rule_share_a_call():
    def run():
        def table(name, rule, policy=None):
            return dj.TableConfig(
                name, 4, admission=RULES.get(rule), eviction=policy, missing_row="initializer"
            )

        lru = dj.eviction.lru(500, record=1 << 20)
        tables = [
            table("a", "fourth"),
            table("b", None),
            table("c", "drawn", lru),
            table("d", None, lru),
            table("e", "crowded", dj.eviction.ttl(dj.eviction.lfu(400, record=9), steps=1)),
        ]
        features = [dj.FeatureConfig(one, "sum" if n % 2 else None) for n, one in enumerate(tables)]
        emb = dj.create([*features, dj.FeatureConfig(tables[0], "mean")], max_outstanding=2)
        for turn in range(5):
            batch = [
                dj.Padded(
                    drawn_ids(10 * turn + n, 3000).reshape(-1, 6),
                    lengths=np.random.default_rng(n).integers(0, 7, 500),
                )
                for n in range(6)
            ]
            acts, emb = dj.lookup(emb, batch)
            emb = dj.apply_gradients(emb, acts, jax.tree.map(jnp.ones_like, acts.rows))
        names = [one.name for one in tables]
        out = [counted(emb, name) for name in names]
        out += [dj.contains(emb, name, np.arange(60_100)) for name in names]
        out += [list(dj.drain_evicted(emb, name)) for name in "cde"]
        dj.close(emb)
        return out

    cpu, gpu = on_each_platform(run)

    same(cpu, gpu)
    assert cpu[4]["expired"] > 0


def test_a_call_of_more_features_than_a_launch_takes_counts_them_in_their_order():
    def run():
        table = dj.TableConfig("items", 2, admission=RULES["fourth"], missing_row=9.0)
        emb = dj.create([dj.FeatureConfig(table)] * 300, max_outstanding=1)
        served = []
        for turn in range(2):
            rng = np.random.default_rng(turn)
            acts, emb = dj.lookup(emb, list(rng.integers(0, 200, (300, 3))))
            served.append(np.stack(acts.rows)[..., 0] != 9.0)
        out = counted(emb), served
        dj.close(emb)
        return out

    cpu, gpu = on_each_platform(run)

    same(cpu, gpu)
    assert 0 < cpu[0]["refused"]["admission"] < 1800


@pytest.mark.parametrize("rule", ["fourth", "drawn"])
@pytest.mark.parametrize("max_rows", [None, 500])
def test_a_replayed_lookup_of_many_ids_refuses_the_same_ones(rule, max_rows):
    def run():
        policy = None if max_rows is None else dj.eviction.lru(max_rows)
        table = dj.TableConfig("items", 2, admission=RULES[rule], eviction=policy, missing_row=9.0)
        emb = dj.create(dj.FeatureConfig(table), max_outstanding=1)
        slopes = []
        for turn in range(4):
            ids = jnp.asarray(drawn_ids(turn, 5000))

            def loss(x, emb, ids=ids):
                def inner(x, emb):
                    acts, emb = dj.lookup(emb, ids)
                    return jnp.sum(jnp.sin(acts.rows * x)), (acts, emb)

                return jax.checkpoint(inner)(x, emb)

            slope, (acts, emb) = jax.grad(loss, has_aux=True)(jnp.float32(1.0), emb)
            rows = np.asarray(acts.rows, np.float64)
            np.testing.assert_allclose(slope, np.sum(np.cos(rows) * rows), rtol=1e-3)
            slopes.append(np.asarray(acts.rows[:, 0]) == 9.0)
            emb = dj.apply_gradients(emb, acts, jnp.zeros_like(acts.rows))
        out = counted(emb), slopes
        dj.close(emb)
        return out

    cpu, gpu = on_each_platform(run)

    same(cpu, gpu)


def test_a_table_that_is_short_of_room_makes_it_for_those_who_are_let_in():
    emb = create(2, admission=RULES["second"])
    for turn in range(8):
        _, emb = dj.lookup(emb, np.arange(10_000) + 10_000 * turn)

    stats = dj.stats(emb)["items"]
    assert stats.rows + stats.refused["admission"] == 80_000
    assert stats.rows < 100  # let in by collisions
    # Head-room for queued calls is four batches.
    assert stats.capacity < 100_000


def expiring(policy, record, ttl=6, turns=30):
    """Batches of new and old keys into a table whose rows live for some lookups."""
    # A GPU keeps head-room: with all of its room from the start both have the same buckets.
    emb = bounded(policy, 16_000, record=record, outstanding=3, ttl=ttl, initial_rows=16_000)
    drained = []
    for turn in range(turns):
        ids = np.concatenate([drawn_ids(turn, 500), np.arange(2000) + 2000 * (turn % 9)])
        scores = np.arange(2500) % 11 if policy == "custom" else None
        acts, emb = dj.lookup(emb, ids, scores=scores)
        if turn % 3:
            emb = dj.apply_gradients(emb, acts, random_grads((2500, 4), turn))
        if record and turn % 7 == 0:
            drained.append(list(dj.drain_evicted(emb, "items")))
    if record:
        drained.append(list(dj.drain_evicted(emb, "items")))
    out = counted(emb), drained, dj.contains(emb, "items", np.arange(60_000))
    dj.close(emb)
    return out


@pytest.mark.parametrize("record", [0, 100, 3000, 1 << 20])
@pytest.mark.parametrize("policy", TIMELESS)
def test_many_keys_expire_as_on_the_cpu_and_are_put_on_record_in_order(policy, record):
    cpu, gpu = on_each_platform(lambda: expiring(policy, record))

    same(cpu, gpu)
    assert cpu[0]["expired"] > 10_000


@pytest.mark.parametrize("record", [100, 1 << 20])
def test_one_block_lets_the_same_keys_expire(native, record):
    together = expiring("lfu", record)
    native.allow_cooperative_launch(allowed=False)

    alone = expiring("lfu", record)

    same(together, alone)


@pytest.mark.parametrize("policy", TIMELESS)
def test_queued_steps_admit_and_expire_as_on_the_cpu(policy, closing):
    steps = 120
    scores = jnp.arange(512, dtype=jnp.uint32) % 7 if policy == "custom" else None

    def run():
        eviction = dj.eviction.ttl(eviction_of(policy, 700, record=1 << 20), steps=8)
        table = dj.TableConfig(
            "items", 8, eviction=eviction, admission=RULES["fourth"], initial_rows=700
        )
        emb = closing(dj.create(dj.FeatureConfig(table), max_outstanding=1))

        @jax.jit
        def step(emb, ids):
            acts, emb = dj.lookup(emb, ids, scores=scores)
            return dj.apply_gradients(emb, acts, jnp.ones_like(acts.rows))

        for turn in range(steps):
            emb = step(emb, dj.keys(drawn_ids(turn, 512, 5000)))
        return (
            counted(emb),
            list(dj.drain_evicted(emb, "items")),
            dj.contains(emb, "items", np.arange(6000)),
        )

    cpu, gpu = on_each_platform(run)

    same(cpu, gpu)
    assert min(cpu[0]["expired"], cpu[0]["evicted"]) > 50


def test_calls_that_must_not_run_let_nothing_expire_and_count_nothing(closing):
    eviction = dj.eviction.ttl(dj.eviction.lfu(), steps=1)
    table = dj.TableConfig("items", 2, eviction=eviction, admission=RULES["second"])
    emb = closing(dj.create(dj.FeatureConfig(table, "sum"), max_outstanding=1))
    ids = np.full((4, 3), 5)
    _, emb = dj.lookup(emb, dj.Padded(ids, lengths=np.full(4, 3)))
    old = emb
    _, emb = dj.lookup(emb, np.full((1, 1), 6))
    before = counted(emb)

    with pytest.raises(dj.errors.InputError, match="lengths"):
        dj.lookup(emb, dj.Padded(np.full((4, 3), 8), lengths=np.full(4, 7)))
    with pytest.raises(dj.errors.StaleStateError):
        dj.lookup(old, np.full((1, 1), 8))
    emb = dj.resync(emb)

    assert counted(emb) == before
    assert before["expired"] == 0
    _, emb = dj.lookup(emb, np.full((1, 1), 8))
    assert counted(emb)["expired"] == 1
    assert not dj.contains(emb, "items", np.array([8])).any()


def test_room_is_what_expired_keys_have_left_when_a_full_table_must_fail():
    eviction = dj.eviction.ttl(dj.eviction.lru(1000), steps=1)
    table = dj.TableConfig("items", 2, eviction=eviction, on_full="error")
    emb = dj.create(dj.FeatureConfig(table), max_outstanding=1)
    step = make_step()

    for turn in range(0, 40, 2):
        for part in (0, 1):
            grads = np.ones((500, 2), np.float32)
            emb = step(emb, dj.keys(np.arange(500) + 500 * (turn + part)), grads)
        emb = step(emb, dj.keys(np.arange(500) + 500 * turn + 500), grads)

    stats = dj.stats(emb)["items"]
    assert stats.inserted == 20_000
    assert stats.rows + stats.expired == 20_000
