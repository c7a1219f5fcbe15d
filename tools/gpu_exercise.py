"""Every kernel once or twice on small sizes, checked; to run under compute-sanitizer.

compute-sanitizer --tool memcheck|racecheck --error-exitcode 1 python3 tools/gpu_exercise.py
"""

import jax
import jax.numpy as jnp
import numpy as np

import dynemb_jax as dj


def main() -> None:
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
    ]
    dims = (3, 64, 128, 130, 32, 129, 260, 64, 3, 130, 132, 257, 64)
    for dim, optimizer in zip(dims, optimizers, strict=True):
        a = dj.TableConfig("a", dim, optimizer=optimizer, initializer=dj.initializers.normal())
        b = dj.TableConfig("b", 4, max_bytes=20_000, on_full="drop", missing_row="initializer")
        emb = dj.create([dj.FeatureConfig(a), dj.FeatureConfig(a, "mean"), dj.FeatureConfig(b)])
        for turn in range(3):
            ids = rng.integers(0, 3000, 1500) * (rng.random(1500) < 0.6)  # one key is hot
            bags = rng.integers(0, 3000, (40, 5))
            weights = rng.random((40, 5)).astype(np.float32)
            padded = dj.Padded(bags, lengths=rng.integers(0, 6, 40), weights=weights)
            batch = [dj.keys(ids), padded, dj.keys(ids + turn)]
            acts, emb = dj.lookup(emb, batch)
            more, emb = dj.lookup(emb, [dj.keys(ids[:99]), None, None])
            grads = [jax.tree.map(jnp.ones_like, one.rows) for one in (acts, more)]
            emb = dj.apply_gradients(emb, [acts, more], grads)
            dj.lookup(emb, batch, train=False)
            emb = dj.erase(emb, "a", np.arange(0, 3000, 7))
            emb = dj.assign(emb, "a", [5, 6, 5], np.ones((3, dim), np.float32))
        assert dj.get(emb, "a", [5]).rows.tolist() == [[1.0] * dim]
        dj.close(emb)
    print("exercised")


if __name__ == "__main__":
    main()
