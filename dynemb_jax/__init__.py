"""Dynamic embedding tables for JAX: any 64-bit key, tables that grow while training."""

from dynemb_jax import admission as admission
from dynemb_jax import errors as errors
from dynemb_jax import eviction as eviction
from dynemb_jax import initializers as initializers
from dynemb_jax import optimizers as optimizers
from dynemb_jax.config import FeatureConfig as FeatureConfig
from dynemb_jax.config import TableConfig as TableConfig
from dynemb_jax.embeddings import Activations as Activations
from dynemb_jax.embeddings import Embeddings as Embeddings
from dynemb_jax.embeddings import create as create
from dynemb_jax.feed import feed as feed
from dynemb_jax.forget import EvictedKeys as EvictedKeys
from dynemb_jax.forget import clear as clear
from dynemb_jax.forget import drain_evicted as drain_evicted
from dynemb_jax.forget import erase_if as erase_if
from dynemb_jax.forget import shrink as shrink
from dynemb_jax.host import TableRows as TableRows
from dynemb_jax.host import TableStats as TableStats
from dynemb_jax.host import assign as assign
from dynemb_jax.host import close as close
from dynemb_jax.host import contains as contains
from dynemb_jax.host import erase as erase
from dynemb_jax.host import get as get
from dynemb_jax.host import resync as resync
from dynemb_jax.host import stats as stats
from dynemb_jax.inputs import Padded as Padded
from dynemb_jax.inputs import Ragged as Ragged
from dynemb_jax.keys import Keys as Keys
from dynemb_jax.keys import hash_keys as hash_keys
from dynemb_jax.keys import keys as keys
from dynemb_jax.lookups import EvictedBatch as EvictedBatch
from dynemb_jax.lookups import lookup as lookup
from dynemb_jax.lookups import remat_policy as remat_policy
from dynemb_jax.lookups import taps as taps
from dynemb_jax.updates import apply_gradients as apply_gradients

__version__ = "0.1.0"

__all__ = [
    "Activations",
    "Embeddings",
    "EvictedBatch",
    "EvictedKeys",
    "FeatureConfig",
    "Keys",
    "Padded",
    "Ragged",
    "TableConfig",
    "TableRows",
    "TableStats",
    "admission",
    "apply_gradients",
    "assign",
    "clear",
    "close",
    "contains",
    "create",
    "drain_evicted",
    "erase",
    "erase_if",
    "errors",
    "eviction",
    "feed",
    "get",
    "hash_keys",
    "initializers",
    "keys",
    "lookup",
    "optimizers",
    "remat_policy",
    "resync",
    "shrink",
    "stats",
    "taps",
]
