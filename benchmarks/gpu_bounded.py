"""A full table that forgets, against one that grows: the same steps, some keys of each new.

Batches are those of the case "zipf", of whose ids one in a hundred is replaced by a key that was
never seen before.
"""

import functools
from typing import Any

import gpu_cases
import gpu_dynemb
import gpu_report
import gpu_timing
import jax
import jax.numpy as jnp

import dynemb_jax as dj

CASE = "bounded"
NEW_SHARE = 0.01
POLICIES = ("lru", "lfu")


@functools.partial(jax.jit, donate_argnames="emb")
def _train(emb: dj.Embeddings, known: Any, new: Any, grads: Any) -> tuple[dj.Embeddings, Any]:
    acts, emb = dj.lookup(emb, [dj.Keys(jnp.concatenate([known, new]))])
    return dj.apply_gradients(emb, acts, [grads]), acts.rows


class Variant:
    """A table of `vocabulary` rows, all taken; without a policy it has room for what comes."""

    def __init__(self, policy: str | None, case: gpu_cases.Case, steps: int):
        draw = case.draw
        self.num_new = int(draw.ids * NEW_SHARE)
        room = draw.vocabulary + (0 if policy else steps * self.num_new)
        eviction = getattr(dj.eviction, policy)(max_rows=room) if policy else None
        config = dj.TableConfig(
            "t0",
            case.dim,
            optimizer=gpu_cases.optimizer(case.optimizer),
            initial_rows=room,
            eviction=eviction,
        )
        self.name = policy or "unbounded"
        self.emb = dj.create([dj.FeatureConfig(config)], max_outstanding=1)
        self.first_new = draw.vocabulary
        for first in range(0, draw.vocabulary, gpu_dynemb.FILL_IDS):
            ids = jnp.arange(gpu_dynemb.FILL_IDS, dtype=jnp.int32) + first
            ids = jnp.minimum(ids, draw.vocabulary - 1)
            self.emb = gpu_dynemb.insert(self.emb, gpu_cases.spread(1, [ids]))
        kept = draw.ids - self.num_new
        self.known = [batch[0].pairs[:kept] for batch in gpu_cases.keys_on_device(draw)]
        self.grads = jax.random.normal(jax.random.key(0), (draw.ids, case.dim)) * 1e-2
        jax.block_until_ready(self.emb)

    def new_keys(self, step: int) -> Any:
        """Keys of a step that no other step has."""
        ids = jnp.arange(self.num_new, dtype=jnp.int32) + self.first_new + step * self.num_new
        return gpu_cases.spread(1, [ids])[0].pairs

    def make_new(self, steps: int) -> None:
        """Makes the new keys of all steps beforehand."""
        self.new = jax.block_until_ready([self.new_keys(i) for i in range(steps)])

    def train(self, i: int) -> Any:
        """Step number i; returns the rows."""
        self.emb, rows = _train(self.emb, self.known[i % len(self.known)], self.new[i], self.grads)
        return rows


def measure(run: Any) -> None:
    """Times the variants in turn, and adds a line for each to the run."""
    scale = run.scale
    draw = gpu_cases.Draw(1, scale.ids, scale.large_table, gpu_cases.ZIPF)
    for optimizer in ("sgd", "adam"):
        case = gpu_cases.Case(CASE, draw, 128, optimizer)
        steps = draw.batches + scale.rounds * (1 + scale.synchronised + scale.piped) + 1
        variants = [Variant(policy, case, steps) for policy in (None, *POLICIES)]
        for one in variants:
            one.make_new(steps)
        runs = {one.name: one.train for one in variants}
        gpu_timing.warm_up(runs, draw.batches)
        times, _ = gpu_timing.in_turn(runs, scale, draw.batches, scale.piped)
        unique = gpu_cases.unique_rows(draw)
        for one in variants:
            stats = dj.stats(one.emb)["t0"]
            refused = sum(stats.refused.values())
            if stats.ids != stats.hits + stats.inserted + refused:
                run.failures.append(f"{CASE} {one.name}: ids do not add up: {stats}")
            line = {
                "case": CASE, "variant": one.name, "op": "train", "tables": 1, "n": draw.ids,
                "dim": case.dim, "keys_per_table": draw.vocabulary, "skew": draw.skew,
                "load": stats.load, "hit_rate": 1 - NEW_SHARE, "optimizer": optimizer,
                "dtype": "float32", "unique_rows": round(unique), "timing": "jit",
                "bytes_floor": gpu_cases.floor_bytes(case, unique, "train"),
            } | times[one.name].columns()  # fmt: skip
            run.add(run.stamp | gpu_report.finished(line, run.copy_rate))
            print(
                f"    evicted {stats.evicted}, refused {refused}, waits {stats.waits}", flush=True
            )
            dj.close(one.emb)
