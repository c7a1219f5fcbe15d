"""A table group: the static part of an Embeddings, and the owner of its native tables."""

import hashlib
import os
import threading
import weakref
from collections import Counter
from typing import Any, NoReturn

import jax
from jax.core import Tracer

from dynemb_jax import admission
from dynemb_jax._registration import native_for
from dynemb_jax.config import ROW_DTYPES, FeatureConfig, TableConfig
from dynemb_jax.errors import (
    ClosedError,
    ConfigError,
    DynembError,
    UnknownTableError,
    typed,
)

_ON_FULL = {"error": 0, "drop": 1, "evict": 2}

# Groups made so far in this process, per fingerprint: a program that creates the same tables in
# the same order gets the same ids in every process, and JAX's persistent compilation cache hits.
_created: Counter[int] = Counter()
_created_lock = threading.Lock()


class Feature:
    """One feature of a group: its table's position, its configuration, its name in messages."""

    __slots__ = ("config", "path", "table")

    def __init__(self, path: str, table: int, config: FeatureConfig):
        """Plain fields."""
        self.path = path
        self.table = table
        self.config = config


class Group:
    """Static part of an Embeddings. Equal only to itself, so programs never mix groups."""

    def __init__(self, features: Any, seed: int, max_outstanding: int, deterministic: bool):
        """Collects tables from features and creates them natively.

        Raises:
            ConfigError: features that cannot work together.
            TableMemoryError, TableFullError: no room for the initial rows.
            NotImplementedError: what tables on a GPU cannot do yet.
        """
        leaves, self.treedef = jax.tree_util.tree_flatten_with_path(features)
        if not leaves:
            raise ConfigError("create needs at least one FeatureConfig, got an empty nest.")
        tables: dict[str, TableConfig] = {}
        self.features: tuple[Feature, ...] = ()
        for path, config in leaves:
            name = jax.tree_util.keystr(path) or "(the only one)"
            if not isinstance(config, FeatureConfig):
                raise ConfigError(
                    f"feature {name} must be a FeatureConfig, got {type(config).__name__}; write "
                    "dynemb_jax.FeatureConfig(table)."
                )
            known = tables.setdefault(config.table.name, config.table)
            if known != config.table:
                raise ConfigError(
                    f"two different tables are named {known.name!r} ({known} and {config.table}); "
                    "use one TableConfig object in all features that share it, or two names."
                )
            position = list(tables).index(config.table.name)
            self.features += (Feature(name, position, config),)
        self.tables = tuple(tables.values())
        self.device = jax.config.jax_default_device or jax.local_devices()[0]  # pyright: ignore
        if isinstance(self.device, str):
            self.device = jax.local_devices(backend=self.device)[0]
        # The number that handlers see: XLA counts GPUs per process, CPUs over all of them.
        self.native = native_for(self.device.platform)
        is_cpu = self.device.platform == "cpu"
        self.ordinal: int = self.device.id if is_cpu else self.device.local_hardware_id
        self.id = _next_id(self.tables, self.features, seed)
        self._create(seed, max_outstanding, deterministic)
        self._finalizer = weakref.finalize(self, self.native.close_group, self.id)

    def _create(self, seed: int, max_outstanding: int, deterministic: bool) -> None:
        # Tokens of two groups, or of two processes, do not pass for each other.
        # 23 bits: float32 can hold them, so arithmetic on a token shows.
        first_version = int.from_bytes(os.urandom(3), "little") >> 1
        of_group = {"max_outstanding": max_outstanding, "deterministic": deterministic}
        tables = [_native_fields(table) | of_group for table in self.tables]
        with typed(), jax.default_device(self.device):
            self.native.create_group(self.id, self.ordinal, first_version, seed % (1 << 64), tables)

    def table_position(self, name: str) -> int:
        """Position of a table.

        Raises:
            UnknownTableError: no table of that name.
        """
        for position, table in enumerate(self.tables):
            if table.name == name:
                return position
        known = ", ".join(repr(table.name) for table in self.tables)
        raise UnknownTableError(f"no table named {name!r}; this Embeddings has {known}.")

    def version(self) -> int:
        """The current token's value."""
        with typed():
            return self.native.version(self.id, self.ordinal)

    def renew(self) -> int:
        """A new current version, which no queued program can overtake."""
        with typed():
            return self.native.renew(self.id, self.ordinal)

    def settle(self, token: jax.Array) -> jax.Array:
        """Returns the token; where it is concrete, after its call has succeeded.

        A GPU tells later what went wrong in a call. Called eagerly, this package waits for it, so
        that errors are raised where they are made; inside of jit nothing waits.
        """
        if self.device.platform != "cpu" and not isinstance(token, Tracer):
            jax.block_until_ready(token)
            self.native.check(self.id, self.ordinal)
        return token

    @property
    def closed(self) -> bool:
        """Whether close was called."""
        return not self._finalizer.alive

    def check_open(self) -> None:
        """Raises ClosedError after close."""
        if self.closed:
            raise ClosedError(
                "these tables are closed; call dynemb_jax.create again and use its Embeddings."
            )

    def close(self) -> None:
        """Frees the native tables; programs in flight finish first."""
        self._finalizer()

    def __reduce__(self) -> NoReturn:
        raise DynembError(
            "an Embeddings cannot be pickled or copied deeply: its rows live in the native "
            "library; read them with dynemb_jax.get."
        )

    def __repr__(self) -> str:
        names = ", ".join(f"{table.name}[{table.dim}]" for table in self.tables)
        return f"Group({names}{', closed' if self.closed else ''})"


def _next_id(tables: tuple[TableConfig, ...], features: tuple[Feature, ...], seed: int) -> int:
    text = repr((tables, [(f.path, f.table, f.config.combiner) for f in features], seed))
    fingerprint = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
    with _created_lock:
        serial = _created[fingerprint]
        _created[fingerprint] += 1
    text = f"{fingerprint}/{serial}"
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1  # 63 bits: a positive int64 attribute


def _native_fields(table: TableConfig) -> dict[str, Any]:
    rule = table.optimizer.native()
    is_initial = table.missing_row == "initializer"
    policy = table.eviction
    max_rows = None if policy is None else policy.max_rows
    ttl_clock, ttl = (0, 0) if policy is None else policy.native_ttl()
    admits = table.admission.native() if table.admission else admission.NativeRule(0)
    return {
        "name": table.name,
        "dim": int(table.dim),
        "row_type": ROW_DTYPES.index(table.dtype),
        "stochastic_rounding": table.rounding == "stochastic",
        "optimizer": rule.optimizer,
        "beta1": float(rule.beta1),
        "beta2": float(rule.beta2),
        "epsilon": float(rule.epsilon),
        "initial_state": float(rule.initial_state),
        "initial_scalar": float(rule.initial_scalar),
        "weight_decay": float(rule.weight_decay),
        "l1": float(rule.l1),
        "l2": float(rule.l2),
        "initial_sum": float(rule.initial_sum),
        "max_grad_norm": float(table.optimizer.max_grad_norm or 0.0),
        "outside": None if rule.outside is None else (rule.outside.vectors, rule.outside.scalars),
        "initializer": table.initializer.kind,
        "initializer_parameter": table.initializer.resolve(table.dim),
        "max_load": float(table.max_load),
        "initial_rows": int(table.initial_rows),
        "max_bytes": -1 if table.max_bytes is None else int(table.max_bytes),
        "on_full": _ON_FULL[table.on_full or "error"],
        "max_rows": -1 if max_rows is None else int(max_rows),
        "score": 0 if policy is None else policy.native,
        "half_life": 1 if policy is None else policy.half_life,
        "ttl_clock": ttl_clock,
        "ttl": ttl,
        "admission": admits.kind,
        "admission_threshold": admits.threshold,
        "admission_limit": admits.limit,
        "admission_counters": admits.counters,
        "recorded_evictions": 0 if policy is None else int(policy.record),
        "missing_is_initial": is_initial,
        "missing_value": 0.0 if is_initial else float(table.missing_row),
        "trainable": table.trainable,
    }
