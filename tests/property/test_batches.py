"""Any batch of any nest of features equals the dictionary: rows, weights' gradients, one step."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dynemb_jax as dj
from tests.oracle import ragged, row_init
from tests.oracle.dict_table import DictTable
from tests.oracle.pooling import COMBINERS, pool, pool_vjp
from tests.plugins import OPTIMIZERS
from tests.twin import SPECIAL_KEYS, assert_close, keys, u64

TABLES = {"a": ("sgd", 3), "b": ("adam_row", 2)}
IDS = st.one_of(st.integers(0, 5), st.sampled_from(SPECIAL_KEYS), st.integers(-(2**63), 2**63 - 1))


@dataclass
class Case:
    """One feature and its batch. present and weights are None when nothing is declared.

    splits are lengths [...] for padding "lengths", row splits for "splits".
    """

    table: str
    combiner: str | None
    ids: np.ndarray
    padding: str | None
    splits: np.ndarray | None
    present: np.ndarray | None
    weights: np.ndarray | None
    form: str

    def config(self, tables):
        return dj.FeatureConfig(tables[self.table], self.combiner)

    def input(self, weights):
        """The leaf that goes into lookup."""
        ids = keys(self.ids) if self.form == "keys" else self.ids.astype(np.int64)
        if self.padding == "splits":
            return dj.Ragged(ids, self.splits, weights)
        options = {}
        if self.padding == "lengths":
            options["lengths"] = self.splits
        elif self.padding == "mask":
            options["mask"] = self.present
        if weights is not None:
            options["weights"] = weights
        return dj.Padded(ids, **options) if options else ids


@st.composite
def cases(draw):
    combiner = draw(st.sampled_from([None, *COMBINERS]))
    rank = draw(st.integers(0 if combiner is None else 1, 3))
    shape = tuple(draw(st.integers(0, 3 if rank > 1 else 9)) for _ in range(rank))
    count = int(np.prod(shape))
    ids = draw(st.lists(IDS, min_size=count, max_size=count))
    ids = np.array(ids, object).reshape(shape)
    weighted = combiner is not None and draw(st.booleans())
    # Weights come with Padded or Ragged, which say what is padding.
    choices = ["lengths", "mask"] if weighted else [None, "lengths", "mask"]
    is_cpu = jax.config.jax_default_device.platform == "cpu"  # a GPU has no Ragged yet
    choices += ["splits"] if rank == 1 and is_cpu else []
    padding = draw(st.sampled_from(choices)) if rank else None
    lengths = present = weights = None
    if padding == "splits":
        bounds = draw(st.lists(st.integers(0, count), max_size=4))
        lengths = np.array([0, *sorted(bounds)], np.int32)
        present = np.arange(count) < lengths[-1]
    elif padding == "lengths":
        n = draw(st.lists(st.integers(0, shape[-1]), min_size=count, max_size=count))
        rows = int(np.prod(shape[:-1]))
        lengths = np.resize(np.array([*n, 0], np.int32), rows).reshape(shape[:-1])
        present = np.arange(shape[-1]) < lengths[..., None]
    elif padding == "mask":
        present = np.array(draw(st.lists(st.booleans(), min_size=count, max_size=count)), bool)
        present = present.reshape(shape)
    if weighted:
        # Multiples of a quarter: sums are exact, so a sum of zero is one for both sides.
        w = draw(st.lists(st.integers(-4, 8), min_size=count, max_size=count))
        weights = (np.array(w, np.float32) / 4).reshape(shape)
    form = draw(st.sampled_from(["keys", "int64"]))
    return Case(
        draw(st.sampled_from("ab")), combiner, ids, padding, lengths, present, weights, form
    )


nests = st.lists(cases(), min_size=1, max_size=3).flatmap(
    lambda cs: st.sampled_from(
        [
            cs,
            {f"f{len(cs) - i}": c for i, c in enumerate(cs)},
            {"outer": (cs[0], [*cs[1:]])},
        ]
    )
)


def leaves(nest):
    return jax.tree.leaves(nest, is_leaf=lambda x: isinstance(x, Case))


def mapped(f, nest, *more):
    return jax.tree.map(f, nest, *more, is_leaf=lambda x: isinstance(x, Case))


def reference(case, table, ct):
    """Returns (rows, per-id gradients, weights' gradients) of one feature."""
    shape = case.ids.shape
    values = table.values(case.ids).reshape(*shape, table.dim)
    present = np.ones(shape, bool) if case.present is None else case.present
    if case.combiner is None:
        return values * present[..., None], ct * present[..., None], None
    if case.padding == "splits":
        given = (case.splits, case.weights)
        rows = ragged.pool(case.combiner, values, *given)
        return rows, *ragged.pool_vjp(case.combiner, values, ct, *given)
    rows = pool(case.combiner, values, present, case.weights)
    return rows, *pool_vjp(case.combiner, values, ct, present, case.weights)


def check(nest, seed, deterministic=False):
    """Looks up under grad, applies, and compares rows, gradients and tables with the dictionary."""
    tables, oracles = {}, {}
    for name, (optimizer, dim) in TABLES.items():
        tables[name] = dj.TableConfig(name, dim, optimizer=OPTIMIZERS[optimizer][0])
        oracles[name] = DictTable(
            name, dim, optimizer=OPTIMIZERS[optimizer][1], first_rows=row_init.Uniform(), seed=seed
        )
    features = mapped(lambda c: c.config(tables), nest)
    emb = dj.create(features, seed=seed, deterministic=deterministic)
    rng = np.random.default_rng(seed)
    taps = dj.taps(emb, mapped(lambda c: c.input(c.weights), nest))
    cts = jax.tree.map(lambda t: rng.normal(size=t.shape).astype(np.float32), taps)
    weights = [None if c.weights is None else jnp.asarray(c.weights) for c in leaves(nest)]

    def loss(taps, weights):
        given = iter(weights)
        acts, after = dj.lookup(emb, mapped(lambda c: c.input(next(given)), nest), taps=taps)
        terms = jax.tree.map(lambda r, ct: jnp.sum(r * ct), acts.rows, cts)
        return sum(jax.tree.leaves(terms), jnp.zeros(())), (acts, after)

    (d_taps, d_weights), (acts, emb) = jax.grad(loss, argnums=(0, 1), has_aux=True)(taps, weights)
    emb = dj.apply_gradients(emb, acts, d_taps)

    flat = leaves(nest)
    for case in flat:
        oracles[case.table].lookup(case.ids, case.present)
    gradients = {name: ([], []) for name in TABLES}
    rows, cts = jax.tree.leaves(acts.rows), jax.tree.leaves(cts)
    for case, row, ct, d_w in zip(flat, rows, cts, d_weights, strict=True):
        table = oracles[case.table]
        expected, per_id, expected_w = reference(case, table, ct)
        assert_close(row, expected, atol=1e-5)
        if case.weights is not None:
            assert_close(d_w, expected_w, rtol=1e-4, atol=1e-4, what="weights")
        present = np.ones(case.ids.shape, bool) if case.present is None else case.present
        gradients[case.table][0].extend(case.ids[present])
        gradients[case.table][1].extend(per_id[present])
    found, _ = dj.lookup(emb, mapped(lambda c: c.input(c.weights), nest), train=False)
    used = {case.table for case in flat}
    for name in used:
        table, (ids, grads) = oracles[name], gradients[name]
        table.apply(np.array(ids, object), np.reshape(grads, (-1, table.dim)))
        got = dj.get(emb, name, dj.keys(u64(list(table.rows))))
        assert got.found.all()
        assert_close(got.rows, table.values(list(table.rows)), rtol=1e-4, atol=1e-5)
        stats = dj.stats(emb)[name]
        assert {c: getattr(stats, c) for c in ("rows", "ids", "hits", "inserted")} == {
            "rows": len(table.rows)
        } | {c: table.counters[c] for c in ("ids", "hits", "inserted")}
    for case, row, ct in zip(flat, jax.tree.leaves(found.rows), cts, strict=True):
        assert_close(row, reference(case, oracles[case.table], ct)[0], rtol=1e-4, atol=1e-5)
    assert set(emb.tables) == used
    jax.tree.map(
        np.testing.assert_array_equal, d_taps, jax.tree.unflatten(jax.tree.structure(taps), cts)
    )
    dj.close(emb)


@given(nest=nests, seed=st.integers(0, 2**32 - 1), deterministic=st.booleans())
def test_any_batch_equals_the_dictionary(nest, seed, deterministic):
    check(nest, seed, deterministic)


@pytest.mark.long
@settings(settings.get_profile("long"))
@given(nest=nests, seed=st.integers(0, 2**32 - 1), deterministic=st.booleans())
def test_many_batches_equal_the_dictionary(nest, seed, deterministic):
    check(nest, seed, deterministic)
