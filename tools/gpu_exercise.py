"""Every kernel once or twice on small sizes, checked; to run under compute-sanitizer.

compute-sanitizer --tool memcheck|racecheck --error-exitcode 1 python3 tools/gpu_exercise.py [PART]
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax

import dynemb_jax as dj


def home_hash(keys: np.ndarray) -> np.ndarray:
    """SplitMix64: its low bits choose a key's first bucket."""
    with np.errstate(over="ignore"):
        z = keys.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def exercise_bounded_tables() -> None:
    """Full tables forget, also where all keys come to one bucket, and their counters add up."""
    rng = np.random.default_rng(1)
    everywhere = np.arange(4000)
    one_bucket = np.arange(40_000)[home_hash(np.arange(40_000)) % 16 == 0]
    for policy in ("lru", "lfu", "timestamp", "custom"):
        for pool in (everywhere, one_bucket):
            eviction = getattr(dj.eviction, policy)(max_rows=150, record=100)
            table = dj.TableConfig("items", 12, eviction=eviction)
            emb = dj.create(
                [dj.FeatureConfig(table), dj.FeatureConfig(table, "sum")], max_outstanding=2
            )
            given = policy == "custom"
            for turn in range(6):
                ids = rng.choice(pool, 400 if turn % 2 else 60)
                bags = dj.Padded(rng.choice(pool, (10, 4)), lengths=rng.integers(0, 5, 10))
                scores = [rng.integers(0, 9, ids.shape), rng.integers(0, 9, (10, 4))]
                batch = [dj.keys(ids), bags]
                acts, emb = dj.lookup(emb, batch, scores=scores if given else None)
                more, emb = dj.lookup(emb, batch, scores=scores if given else None)
                grads = [jax.tree.map(jnp.ones_like, one.rows) for one in (acts, more)]
                emb = dj.apply_gradients(emb, [acts, more], grads)
                emb = dj.erase(emb, "items", pool[turn::50])
                emb = dj.assign(emb, "items", pool[:40], np.ones((40, 12), np.float32))
            emb = dj.erase_if(emb, "items", score_below=2)
            _, emb, gone = dj.lookup(
                emb, batch, scores=scores if given else None, return_evicted=True
            )
            assert gone["items"].count >= 0
            emb, _ = dj.shrink(emb)
            stats = dj.stats(emb)["items"]
            assert stats.ids == stats.hits + stats.inserted + sum(stats.refused.values())
            drained = dj.drain_evicted(emb, "items")
            assert drained.keys.size + drained.lost == stats.evicted > 0
            emb = dj.clear(emb, "items")
            assert dj.stats(emb)["items"].rows == 0
            dj.close(emb)


def exercise_admission_and_expiry() -> None:
    """Keys wait until they are let in, and go when they are old; lookups are repeated."""
    rng = np.random.default_rng(2)
    frequency, drawn = dj.admission.frequency(3, counters=1 << 11), dj.admission.probability(0.5)
    lfu = dj.eviction.lfu(max_rows=100, record=20)
    for admission, policy in [
        (frequency, None),
        (drawn, None),
        (frequency, dj.eviction.ttl(lfu, steps=2)),
        (drawn, dj.eviction.ttl(lfu, seconds=1e-6)),
        (None, dj.eviction.ttl(dj.eviction.lru(record=1000), steps=9)),
        (None, dj.eviction.ttl(dj.eviction.timestamp(), seconds=1e-6)),
    ]:
        table = dj.TableConfig("items", 6, eviction=policy, admission=admission)
        open_to_all = dj.TableConfig("others", 6)
        features = [dj.FeatureConfig(table), dj.FeatureConfig(table, "sum")]
        emb = dj.create([*features, dj.FeatureConfig(open_to_all)], max_outstanding=1)

        @jax.checkpoint
        def inner(x, emb, batch):
            acts, emb = dj.lookup(emb, batch)
            return sum(jnp.sum(jnp.sin(rows * x)) for rows in acts.rows), (acts, emb)

        for turn in range(6):
            ids = jnp.asarray(rng.integers(0, 900, 700) * (rng.random(700) < 0.8) + turn)
            bags = dj.Padded(rng.integers(0, 900, (30, 3)), lengths=rng.integers(0, 4, 30))
            call = jax.grad(inner, has_aux=True)
            _, (acts, emb) = call(jnp.float32(1), emb, [ids, bags, ids])
            emb = dj.apply_gradients(emb, acts, jax.tree.map(jnp.ones_like, acts.rows))
            emb = dj.assign(emb, "items", np.arange(30) + turn, np.ones((30, 6), np.float32))
        stats = dj.stats(emb)["items"]
        assert stats.ids == stats.hits + stats.inserted + sum(stats.refused.values())
        assert stats.refused["admission"] > 0 or admission is None
        assert stats.expired > 0 or policy is None or policy.ttl_steps == 9
        if policy is not None and policy.record:
            drained = dj.drain_evicted(emb, "items")
            assert drained.keys.size + drained.lost == stats.evicted + stats.expired
        emb = dj.clear(emb, "items")
        dj.close(emb)


def exercise_shapes() -> None:
    """Trains tables of several shapes through growth, hot keys, erasure and assignment."""
    rng = np.random.default_rng(0)
    optimizers = [
        dj.optimizers.sgd(0.1),
        dj.optimizers.adagrad(0.1),
        dj.optimizers.adam(0.1),
        dj.optimizers.adam(0.1, bias_correction="row"),
        dj.optimizers.momentum(0.1, nesterov=True),
        dj.optimizers.rowwise_adagrad(0.1),
        dj.optimizers.rowwise_adagrad(0.1, weight_decay=0.1),
        dj.optimizers.rmsprop(0.1),
        dj.optimizers.adamw(0.1),
        dj.optimizers.adamw(0.1, bias_correction="row"),
        dj.optimizers.partial_rowwise_adam(0.1),
        dj.optimizers.partial_rowwise_adam(0.1, bias_correction="row"),
        dj.optimizers.ftrl(0.1, l1=0.1),
        dj.optimizers.lamb(0.1),
        dj.optimizers.lamb(0.1),
    ]
    dims = (3, 64, 128, 130, 32, 129, 260, 64, 3, 130, 132, 257, 64, 20, 260)
    for dim, optimizer in zip(dims, optimizers, strict=True):
        a = dj.TableConfig("a", dim, optimizer=optimizer, initializer=dj.initializers.normal())
        b = dj.TableConfig("b", 4, max_bytes=20_000, on_full="drop", missing_row="initializer")
        halves = [
            dj.TableConfig(dtype, dim, optimizer=optimizer, dtype=dtype, output_dtype=output)
            for dtype, output in (("bfloat16", "bfloat16"), ("float16", "float32"))
        ]
        emb = dj.create(
            [dj.FeatureConfig(a), dj.FeatureConfig(a, "mean"), dj.FeatureConfig(b)]
            + [dj.FeatureConfig(half, how) for half in halves for how in (None, "mean")]
        )
        for turn in range(3):
            ids = rng.integers(0, 3000, 1500) * (rng.random(1500) < 0.6)  # one key is hot
            bags = rng.integers(0, 3000, (40, 5))
            weights = rng.random((40, 5)).astype(np.float32)
            padded = dj.Padded(bags, lengths=rng.integers(0, 6, 40), weights=weights)
            batch = [dj.keys(ids), padded, dj.keys(ids + turn), *[dj.keys(ids), padded] * 2]
            acts, emb = dj.lookup(emb, batch)
            more, emb = dj.lookup(emb, [dj.keys(ids[:99]), *[None] * 6])
            grads = [jax.tree.map(jnp.ones_like, one.rows) for one in (acts, more)]
            emb = dj.apply_gradients(emb, [acts, more], grads)
            dj.lookup(emb, batch, train=False)
            emb = dj.erase(emb, "a", np.arange(0, 3000, 7))
            emb = dj.assign(emb, "a", [5, 6, 5], np.ones((3, dim), np.float32))
        assert dj.get(emb, "a", [5]).rows.tolist() == [[1.0] * dim]
        dj.close(emb)


def exercise_ragged() -> None:
    """Bags of any lengths, clipped gradients, and rules that XLA runs, narrow and wide."""
    rng = np.random.default_rng(3)
    clipped = [dj.optimizers.sgd(0.1, max_grad_norm=0.5), dj.optimizers.adam(0.1, max_grad_norm=2)]
    for dim, rule in zip(
        (3, 64, 130, 260),
        [*clipped, dj.optimizers.from_optax(optax.adam(0.1)), *clipped[:1]],
        strict=True,
    ):
        table = dj.TableConfig("a", dim, optimizer=rule)
        emb = dj.create(
            [dj.FeatureConfig(table, combiner) for combiner in (None, "sum", "mean", "sqrtn")]
        )
        for lengths in ([0, 700, 0, 1, 2, 40, 0], [1] * 7, [0] * 7, [128, 128, 0, 129, 127, 5, 3]):
            splits = np.cumsum([0, *lengths])
            ids = rng.integers(0, 500, 800)
            weights = rng.random(800).astype(np.float32)
            batch = [dj.Ragged(ids, splits)] + [dj.Ragged(ids, splits, weights)] * 3
            acts, emb = dj.lookup(emb, batch)
            emb = dj.apply_gradients(emb, acts, jax.tree.map(jnp.ones_like, acts.rows))
            found = dj.lookup(emb, batch, train=False)[0].rows
            assert all(np.isfinite(rows).all() for rows in found)
        dj.close(emb)


def exercise_fixed_order() -> None:
    """Deterministic groups: few and many ids and features, full tables, one and two lookups."""
    rng = np.random.default_rng(4)
    rules = [dj.optimizers.adam(0.1), dj.optimizers.from_optax(optax.adam(0.1))]
    for num_tables, rule, n in ((1, rules[0], 40), (2, rules[0], 800), (20, rules[1], 800)):
        tables = [dj.TableConfig(f"t{i}", 12, optimizer=rule) for i in range(num_tables)]
        full = dj.TableConfig("full", 8, max_bytes=30_000, on_full="drop")
        configs = [*tables, full]
        features = [dj.FeatureConfig(t, c) for c in (None, "mean", "sum") for t in configs]
        emb = dj.create(features, deterministic=True)
        for turn in range(3):
            splits = np.array([0, n - 10, n - 10, n - 8, n - 1])
            acts = []
            for part in range(2):
                pool = rng.integers(0, 900, (len(features), n)) * (rng.random(n) < 0.7)
                pool += turn * 100 + part
                batch = [
                    ids
                    if f.combiner is None
                    else dj.Padded(ids.reshape(-1, 8), rng.integers(0, 9, n // 8))
                    if f.combiner == "mean"
                    else dj.Ragged(ids, splits)
                    for ids, f in zip(pool, features, strict=True)
                ]
                one, emb = dj.lookup(emb, batch)
                acts.append(one)
            grads = [jax.tree.map(jnp.ones_like, one.rows) for one in acts]
            emb = dj.apply_gradients(emb, acts[turn % 2 :], grads[turn % 2 :])
        stats = dj.stats(emb)["full"]
        assert stats.refused["budget"] > 0 or n == 40
        dj.close(emb)


if __name__ == "__main__":
    parts = {
        "bounded": [exercise_bounded_tables, exercise_admission_and_expiry],
        "shapes": [exercise_shapes],
        "ragged": [exercise_ragged],
        "fixed_order": [exercise_fixed_order],
    }
    for part in sys.argv[1:] or parts:
        for exercise in parts[part]:
            exercise()
        print(f"exercised: {part}")
