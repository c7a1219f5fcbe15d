"""Every error says what is wrong, what was given, and what to do; and has the right class."""

import numpy as np
import pytest

import dynemb_jax as dj
from tests.bounded import bounded
from tests.twin import create, keys

ONE = np.array([1])
ROW = np.ones((1, 4), np.float32)


def two_features():
    table = dj.TableConfig("items", 4)
    return dj.create({"query": dj.FeatureConfig(table), "history": dj.FeatureConfig(table, "mean")})


def updated(emb):
    acts, emb = dj.lookup(emb, ONE)
    return acts, emb


def stale_lookup():
    emb = create()
    dj.lookup(emb, ONE)
    dj.lookup(emb, np.array([2]))


def closed():
    emb = create()
    dj.close(emb)
    dj.stats(emb)


def full():
    emb = create(64, max_bytes=1 << 20)
    dj.lookup(emb, np.arange(100_000))


def wrong_grads():
    acts, emb = updated(create())
    dj.apply_gradients(emb, acts, np.ones((1, 5), np.float32))


def integer_grads():
    acts, emb = updated(create())
    dj.apply_gradients(emb, acts, np.ones((1, 4), np.int32))


def half_a_list():
    acts, emb = updated(create())
    dj.apply_gradients(emb, [acts, acts], [ROW])


def found_only():
    emb = create()
    acts, emb = dj.lookup(emb, ONE, train=False)
    dj.apply_gradients(emb, acts, ROW)


def foreign_activations():
    acts, _ = updated(create())
    dj.apply_gradients(create(), acts, ROW)


def huge():
    create(1024, initial_rows=10**10)


def full_by_rows():
    dj.lookup(bounded("lru", 8, on_full="error"), np.arange(9))


def too_many_outstanding():
    emb = bounded("lru", 1, outstanding=2)
    acts, emb = dj.lookup(emb, ONE)
    for key in (2, 3, 4):
        _, emb = dj.lookup(emb, np.array([key]))
    dj.apply_gradients(emb, acts, ROW)


# What is done, the class it raises, and what the message must name.
MISTAKES = {
    "float ids": (
        lambda: dj.lookup(create(), np.ones(2, np.float32)),
        "InputError",
        ["float32", "int"],
    ),
    "bool ids": (lambda: dj.lookup(create(), np.ones(2, bool)), "InputError", ["bool"]),
    "float ids of a feature": (
        lambda: dj.lookup(two_features(), {"query": np.ones(2), "history": None}),
        "InputError",
        ["query", "float64"],
    ),
    "missing feature": (
        lambda: dj.lookup(two_features(), {"query": ONE}),
        "InputError",
        ["history"],
    ),
    "unknown feature": (
        lambda: dj.lookup(two_features(), {"query": ONE, "history": None, "extra": ONE}),
        "InputError",
        ["extra"],
    ),
    "array for a nest": (lambda: dj.lookup(two_features(), ONE), "InputError", ["query"]),
    "scalar bag": (
        lambda: dj.lookup(two_features(), {"query": None, "history": np.int32(3)}),
        "InputError",
        ["history", "combiner"],
    ),
    "stale lookup": (stale_lookup, "StaleStateError", ["items", "resync"]),
    "closed": (closed, "ClosedError", ["closed", "create"]),
    "full": (full, "TableFullError", ["items", "max_bytes", str(1 << 20), "on_full"]),
    "full by rows": (
        full_by_rows,
        "TableFullError",
        ["items", "9 new keys", "max_rows=8", "evict"],
    ),
    "too many outstanding": (
        too_many_outstanding,
        "TooManyOutstandingError",
        ["items", "max_outstanding=2", "raise max_outstanding"],
    ),
    "no scores for custom": (
        lambda: dj.lookup(bounded("custom", 8), ONE),
        "InputError",
        ["scores", "custom"],
    ),
    "scores for another policy": (
        lambda: dj.lookup(bounded("lru", 8), ONE, scores=ONE),
        "InputError",
        ["custom", "None"],
    ),
    "scores of an evaluation": (
        lambda: dj.lookup(bounded("custom", 8), ONE, train=False, scores=ONE),
        "InputError",
        ["train=False", "scores"],
    ),
    "scores that are no integers": (
        lambda: dj.lookup(bounded("custom", 8), ONE, scores=np.ones(1, np.float32)),
        "InputError",
        ["scores", "float32", "cast"],
    ),
    "scores of another shape": (
        lambda: dj.lookup(bounded("custom", 8), ONE, scores=np.ones((1, 1), np.int32)),
        "InputError",
        ["(1,)", "(1, 1)"],
    ),
    "erase_if without scores": (
        lambda: dj.erase_if(create(), "items", score_below=3),
        "InputError",
        ["erase_if", "items", "eviction"],
    ),
    "erase_if below nothing": (
        lambda: dj.erase_if(bounded("lru", 8), "items", score_below=-1),
        "InputError",
        ["score_below", "-1"],
    ),
    "drain without a policy": (
        lambda: dj.drain_evicted(create(), "items"),
        "InputError",
        ["drain_evicted", "items", "eviction"],
    ),
    "drain without a record": (
        lambda: dj.drain_evicted(bounded("lru", 8), "items"),
        "InputError",
        ["record="],
    ),
    "clear of unknown": (
        lambda: dj.clear(create(), "users"),
        "UnknownTableError",
        ["users", "items"],
    ),
    "memory": (huge, "TableMemoryError", ["memory", "max_bytes"]),
    "gradient shape": (wrong_grads, "InputError", ["(1, 5)", "(1, 4)"]),
    "gradient dtype": (integer_grads, "InputError", ["int32", "float"]),
    "list lengths": (half_a_list, "InputError", ["2"]),
    "activations of a find": (found_only, "InputError", ["train"]),
    "activations of another": (foreign_activations, "DynembError", []),
    "unknown table": (
        lambda: dj.get(create(), "itmes", ONE),
        "UnknownTableError",
        ["itmes", "items"],
    ),
    "assign to unknown": (
        lambda: dj.assign(create(), "users", ONE, ROW),
        "UnknownTableError",
        ["users", "items"],
    ),
    "erase of unknown": (lambda: dj.erase(create(), "users", ONE), "UnknownTableError", ["users"]),
    "contains of unknown": (
        lambda: dj.contains(create(), "users", ONE),
        "UnknownTableError",
        ["users"],
    ),
    "assigned rows": (
        lambda: dj.assign(create(), "items", ONE, np.ones((1, 3), np.float32)),
        "InputError",
        ["(1, 3)", "(1, 4)"],
    ),
    "taps shape": (
        lambda: dj.lookup(create(), ONE, taps=np.zeros((2, 4), np.float32)),
        "InputError",
        ["taps"],
    ),
    "not a collection": (lambda: dj.lookup(np.zeros(1, np.int32), ONE), "InputError", ["create"]),
    "float keys": (lambda: dj.keys([1.5]), "InputError", ["float"]),
    "numbers as strings": (lambda: dj.hash_keys([1]), "InputError", ["str"]),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_has_its_class_and_names_what_matters(mistake, platform):
    make, error, words = MISTAKES[mistake]

    with pytest.raises(getattr(dj.errors, error)) as info:
        make()

    text = str(info.value)
    assert [w for w in words if w not in text] == []
    assert isinstance(info.value, dj.errors.DynembError)
    # What, got, do: two clauses at least, and no internals of XLA around them.
    assert len(text) > 30
    # A full card has to name XLA, which has taken most of it.
    assert "XLA" not in text or (platform, mistake) == ("gpu", "memory")


@pytest.mark.parametrize(
    ("error", "base"),
    [("ConfigError", ValueError), ("InputError", TypeError), ("UnknownTableError", KeyError)],
)
def test_errors_are_also_the_builtin_kind(error, base):
    assert issubclass(getattr(dj.errors, error), base)
    assert issubclass(getattr(dj.errors, error), dj.errors.DynembError)


def test_every_error_is_a_dynemb_error():
    names = [
        "ConfigError",
        "InputError",
        "StaleStateError",
        "ClosedError",
        "TableFullError",
        "TableMemoryError",
        "UnknownTableError",
        "NativeError",
    ]

    assert all(issubclass(getattr(dj.errors, n), dj.errors.DynembError) for n in names)


def test_from_exception_knows_only_our_text():
    assert not isinstance(dj.errors.from_exception(ValueError("other")), dj.errors.DynembError)


def test_typed_lets_other_exceptions_pass():
    with pytest.raises(ZeroDivisionError), dj.errors.typed():
        raise ZeroDivisionError


def test_typed_keeps_a_typed_error_as_it_is():
    error = dj.errors.ClosedError("closed")

    with pytest.raises(dj.errors.ClosedError) as info, dj.errors.typed():
        raise error

    assert info.value is error


def test_a_typed_error_shows_what_xla_said_as_its_cause():
    text = "INVALID_ARGUMENT: dynemb[STALE_STATE]: the state is old"

    with (
        pytest.raises(dj.errors.StaleStateError, match="the state is old") as info,
        dj.errors.typed(),
    ):
        raise ValueError(text)

    assert isinstance(info.value.__cause__, ValueError)


def test_the_text_of_a_state_is_short():
    emb = two_features()

    assert len(repr(emb)) < 200
    assert "items" in repr(emb)


def test_keys_print_their_shape():
    assert repr(keys([5])).startswith("Keys(")
