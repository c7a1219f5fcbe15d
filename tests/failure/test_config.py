"""Configuration mistakes are found at construction, and the message says what to write."""

import dataclasses

import numpy as np
import pytest

import dynemb_jax as dj

BAD = {
    "dim zero": ({"dim": 0}, "dim"),
    "dim negative": ({"dim": -4}, "dim"),
    "dim float": ({"dim": 4.0}, "dim"),
    "dim bool": ({"dim": True}, "dim"),
    "load zero": ({"max_load": 0.0}, "max_load"),
    "load one": ({"max_load": 1.0}, "max_load"),
    "load nan": ({"max_load": float("nan")}, "max_load"),
    "on_full": ({"on_full": "evcit"}, "on_full"),
    "initial_rows": ({"initial_rows": -1}, "initial_rows"),
    "max_bytes": ({"max_bytes": 0}, "max_bytes"),
    "missing_row": ({"missing_row": "zero"}, "missing_row"),
    "missing_row of 16 bits": ({"missing_row": 1e6, "dtype": np.float16}, "missing_row .*float16"),
    "missing_row of 32 bits": ({"missing_row": 1e39}, "missing_row .*float32"),
    "optimizer": ({"optimizer": "adagrad"}, "optimizer"),
    "initializer": ({"initializer": 0.5}, "initializer"),
    "admission": ({"admission": 2}, "admission"),
    "dtype": ({"dtype": "int8"}, "dtype"),
    "dtype none": ({"dtype": "float99"}, "dtype"),
    "output_dtype": ({"output_dtype": "float64"}, "output_dtype"),
    "rounding": ({"rounding": "up", "dtype": "float16"}, "rounding"),
    "rounding of float32": ({"rounding": "nearest"}, "rounding"),
    "empty name": ({"name": ""}, "name"),
    "name": ({"name": "user table"}, "name"),
}


@pytest.mark.parametrize("case", BAD)
def test_an_impossible_value_is_refused_by_its_option(case):
    options, word = BAD[case]

    with pytest.raises(dj.errors.ConfigError, match=word) as info:
        dj.TableConfig(**{"name": "items", "dim": 4, **options})

    assert isinstance(info.value, ValueError)
    value = next(iter(options.values()))
    assert str(value) in str(info.value)


def test_an_unknown_option_is_refused_and_the_known_ones_are_named():
    with pytest.raises(dj.errors.ConfigError, match="inital_rows") as info:
        dj.TableConfig("items", 4, inital_rows=5)

    assert isinstance(info.value, TypeError)
    assert "initial_rows" in str(info.value)


NOT_YET = {
    "placement": "host",
}


@pytest.mark.parametrize("option", NOT_YET)
def test_what_is_not_there_yet_says_so_by_name(option):
    with pytest.raises(NotImplementedError, match=option):
        dj.TableConfig("items", 4, **{option: NOT_YET[option]})


IMPOSSIBLE = {
    "evict without a policy": ({"on_full": "evict"}, "write e.g. eviction=dynemb_jax.eviction.lru"),
    "drop without a bound": ({"on_full": "drop"}, "write max_bytes=.*leave on_full out"),
    "a policy without a bound": ({"eviction": dj.eviction.lru()}, "write max_rows"),
    "the function, not its policy": ({"eviction": dj.eviction.lru}, "write e.g. eviction"),
    "more rows at first than ever": (
        {"eviction": dj.eviction.lru(max_rows=5), "initial_rows": 6},
        "lower initial_rows",
    ),
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_an_eviction_that_cannot_work_is_refused_and_says_what_to_write(case):
    options, word = IMPOSSIBLE[case]

    with pytest.raises(dj.errors.ConfigError, match=f"items.*{word}"):
        dj.TableConfig("items", 4, **options)


@pytest.mark.parametrize("policy", ["lru", "timestamp", "lfu", "custom"])
@pytest.mark.parametrize(
    ("option", "value"),
    [("max_rows", 0), ("max_rows", 2.0), ("max_rows", True), ("record", -1), ("record", None)],
)
def test_an_impossible_number_of_a_policy_is_refused_by_its_name(policy, option, value):
    with pytest.raises(dj.errors.ConfigError, match=f"{option} of eviction.{policy} .*write"):
        getattr(dj.eviction, policy)(**{option: value})


def test_a_policy_means_evict_and_none_means_error():
    policy = dj.eviction.lru(max_rows=10)

    assert dj.TableConfig("items", 4).on_full == "error"
    assert dj.TableConfig("items", 4, eviction=policy).on_full == "evict"
    assert dj.TableConfig("items", 4, eviction=policy, on_full="drop").on_full == "drop"


@pytest.mark.parametrize("decay", [0, -1, 2.5, True, 2**32, "slow"])
def test_an_impossible_half_life_is_refused(decay):
    with pytest.raises(dj.errors.ConfigError, match=r"decay of eviction.lfu .*write"):
        dj.eviction.lfu(max_rows=5, decay=decay)


BAD_TTL = {
    "no policy": (
        lambda lru: dj.eviction.ttl(dj.eviction.lru, steps=5),
        "takes an eviction policy",
    ),
    "twice": (
        lambda lru: dj.eviction.ttl(dj.eviction.ttl(lru, steps=5), seconds=5),
        "without a time to live, got",
    ),
    "nothing": (lambda lru: dj.eviction.ttl(lru), "either steps or seconds, got none"),
    "both": (lambda lru: dj.eviction.ttl(lru, steps=5, seconds=5), "steps or seconds, got both"),
    "steps 0": (lambda lru: dj.eviction.ttl(lru, steps=0), "steps of eviction.ttl .*got 0"),
    "steps 2.0": (lambda lru: dj.eviction.ttl(lru, steps=2.0), "steps of eviction.ttl .*got 2.0"),
    "seconds 0": (lambda lru: dj.eviction.ttl(lru, seconds=0), "seconds of eviction.ttl .*got 0"),
    "nan": (lambda lru: dj.eviction.ttl(lru, seconds=float("nan")), "seconds of eviction.ttl"),
    "bool": (lambda lru: dj.eviction.ttl(lru, seconds=True), "seconds of eviction.ttl .*got True"),
}


@pytest.mark.parametrize("case", BAD_TTL)
def test_an_impossible_time_to_live_is_refused(case):
    make, text = BAD_TTL[case]

    with pytest.raises(dj.errors.ConfigError, match=f"{text}.*write"):
        make(dj.eviction.lru(max_rows=5))


@pytest.mark.parametrize("threshold", [0, -1, 256, 2.0, True, None])
def test_an_impossible_threshold_is_refused(threshold):
    with pytest.raises(dj.errors.ConfigError, match=r"threshold of admission.frequency .*write"):
        dj.admission.frequency(threshold)


@pytest.mark.parametrize("counters", [0, -1, 2.5, True, None, 2**41])
def test_an_impossible_number_of_counters_is_refused(counters):
    with pytest.raises(dj.errors.ConfigError, match=r"counters of admission.frequency .*write"):
        dj.admission.frequency(2, counters=counters)


@pytest.mark.parametrize("p", [0, -0.1, 1.1, float("nan"), True, None, "half"])
def test_an_impossible_probability_is_refused(p):
    with pytest.raises(dj.errors.ConfigError, match=r"p of admission.probability .*write"):
        dj.admission.probability(p)


@pytest.mark.parametrize("value", [0, -1, 1.5, True, None, 1 << 20])
def test_a_number_of_outstanding_lookups_that_is_none_is_refused(value):
    feature = dj.FeatureConfig(dj.TableConfig("items", 4))

    with pytest.raises(dj.errors.InputError, match="max_outstanding"):
        dj.create(feature, max_outstanding=value)


@pytest.mark.parametrize("option", ["mesh", "axis"])
def test_meshes_are_not_there_yet(option):
    feature = dj.FeatureConfig(dj.TableConfig("items", 4))

    with pytest.raises(NotImplementedError, match=option):
        dj.create(feature, **{option: "data"})


def test_two_different_tables_of_one_name_are_refused():
    with pytest.raises(dj.errors.ConfigError, match="items"):
        dj.create(
            [
                dj.FeatureConfig(dj.TableConfig("items", 4)),
                dj.FeatureConfig(dj.TableConfig("items", 8)),
            ]
        )


def test_equal_tables_of_one_name_are_one_table():
    emb = dj.create([dj.FeatureConfig(dj.TableConfig("items", 4)) for _ in range(2)])

    assert tuple(emb.tables) == ("items",)


@pytest.mark.parametrize("table", [None, "items", 4, {"name": "items", "dim": 4}])
def test_a_feature_without_a_table_is_refused(table):
    with pytest.raises(dj.errors.ConfigError, match=r"(?i)table"):
        dj.FeatureConfig(table)


def test_a_feature_needs_its_table():
    with pytest.raises(TypeError):
        dj.FeatureConfig()


@pytest.mark.parametrize("combiner", ["avg", "", 1])
def test_an_unknown_combiner_is_refused_and_the_known_ones_are_named(combiner):
    with pytest.raises(dj.errors.ConfigError, match="sqrtn"):
        dj.FeatureConfig(dj.TableConfig("items", 4), combiner)


@pytest.mark.parametrize("features", [None, {}, [], "items", {"a": 3}])
def test_features_that_are_none_are_refused(features):
    with pytest.raises(dj.errors.ConfigError):
        dj.create(features)


def test_a_table_in_place_of_a_feature_is_refused_with_the_cure():
    with pytest.raises(dj.errors.ConfigError, match="FeatureConfig"):
        dj.create(dj.TableConfig("items", 4))


@pytest.mark.parametrize(
    "make",
    [
        lambda: dj.optimizers.adam(0.1, b1=1.0),
        lambda: dj.optimizers.adam(0.1, b2=-0.1),
        lambda: dj.optimizers.adam(0.1, bias_correction="rows"),
        lambda: dj.optimizers.adagrad(0.1, initial_accumulator=-1.0),
        lambda: dj.optimizers.adagrad(0.1, eps=-1e-7),
        lambda: dj.optimizers.sgd("fast"),
        lambda: dj.optimizers.ftrl(-0.1),
    ],
    ids=["b1", "b2", "correction", "accumulator", "eps", "rate", "negative"],
)
def test_an_impossible_optimizer_is_refused(make):
    with pytest.raises(dj.errors.ConfigError):
        make()


@pytest.mark.parametrize(
    ("make", "option", "value"),
    [
        (dj.optimizers.momentum, "momentum", 1.0),
        (dj.optimizers.momentum, "momentum", -0.1),
        (dj.optimizers.momentum, "momentum", float("nan")),
        (dj.optimizers.momentum, "momentum", True),
        (dj.optimizers.momentum, "nesterov", 0.9),
        (dj.optimizers.rowwise_adagrad, "eps", -1e-8),
        (dj.optimizers.rowwise_adagrad, "eps", "small"),
        (dj.optimizers.rowwise_adagrad, "initial_accumulator", -1.0),
        (dj.optimizers.rowwise_adagrad, "initial_accumulator", float("inf")),
        (dj.optimizers.rmsprop, "decay", 1.0),
        (dj.optimizers.rmsprop, "decay", -0.1),
        (dj.optimizers.rmsprop, "eps", float("nan")),
        (dj.optimizers.rmsprop, "initial_scale", -1.0),
        (dj.optimizers.adamw, "b1", 1.0),
        (dj.optimizers.adamw, "weight_decay", -1e-4),
        (dj.optimizers.adamw, "weight_decay", "strong"),
        (dj.optimizers.adamw, "bias_correction", "rows"),
        (dj.optimizers.partial_rowwise_adam, "b2", 1.0),
        (dj.optimizers.partial_rowwise_adam, "eps", -1e-8),
        (dj.optimizers.partial_rowwise_adam, "bias_correction", None),
        (dj.optimizers.ftrl, "l1", -1.0),
        (dj.optimizers.ftrl, "l2", float("inf")),
        (dj.optimizers.ftrl, "beta", True),
        (dj.optimizers.ftrl, "initial_accumulator", -0.1),
        (dj.optimizers.sgd, "weight_decay", -0.1),
        (dj.optimizers.momentum, "weight_decay", float("inf")),
        (dj.optimizers.adagrad, "weight_decay", float("nan")),
        (dj.optimizers.rowwise_adagrad, "weight_decay", True),
        (dj.optimizers.rmsprop, "weight_decay", "strong"),
        (dj.optimizers.adam, "weight_decay", -1),
        (dj.optimizers.lamb, "b1", 1.0),
        (dj.optimizers.lamb, "eps", -1e-6),
        (dj.optimizers.lamb, "weight_decay", float("nan")),
        (dj.optimizers.sgd, "max_grad_norm", 0.0),
        (dj.optimizers.adam, "max_grad_norm", -1.0),
        (dj.optimizers.ftrl, "max_grad_norm", float("inf")),
        (dj.optimizers.lamb, "max_grad_norm", float("nan")),
        (dj.optimizers.rmsprop, "max_grad_norm", True),
        (dj.optimizers.momentum, "max_grad_norm", 1e-50),  # 0 as float32, which means no bound
    ],
)
def test_an_impossible_number_of_an_optimizer_is_refused_by_its_name(make, option, value):
    with pytest.raises(dj.errors.ConfigError, match=f"{option} must be .*; pass") as info:
        make(0.1, **{option: value})

    assert repr(value) in str(info.value)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("initial_rows", 2**62),
        ("initial_rows", 2**63),
        ("initial_rows", 2**64),
        ("max_bytes", 2**63),
        ("max_bytes", 2**64),
    ],
)
def test_sizes_beyond_the_machine_are_typed_errors(option, value):
    with pytest.raises(dj.errors.DynembError):
        dj.create(dj.FeatureConfig(dj.TableConfig("items", 4, **{option: value})))


def test_a_seed_that_is_no_integer_is_refused():
    feature = dj.FeatureConfig(dj.TableConfig("items", 4))

    with pytest.raises(dj.errors.DynembError, match="seed"):
        dj.create(feature, seed=0.5)


def test_configurations_are_frozen_and_equal_by_value():
    table, same = dj.TableConfig("items", 4), dj.TableConfig("items", 4)

    assert table == same
    assert hash(table) == hash(same)
    assert table != dj.TableConfig("items", 4, initial_rows=1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        table.dim = 5
    with pytest.raises(dataclasses.FrozenInstanceError):
        dj.FeatureConfig(table).combiner = "sum"


def test_numpy_integers_are_dims():
    emb = dj.create(dj.FeatureConfig(dj.TableConfig("items", np.int64(3))))

    acts, _ = dj.lookup(emb, np.array([1]))

    assert acts.rows.shape == (1, 3)
