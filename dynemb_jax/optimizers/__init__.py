"""Optimizers of table rows: frozen descriptions of rules that run in the engine, or in XLA.

Gradients of equal keys are summed first, then every row of the batch takes one step,
also where its gradient is zero. Rows that are not in the batch do not move ("lazy").
A gradient that is not finite spreads to its own row and to no other.
"""

from dynemb_jax.optimizers._adagrad import Adagrad as Adagrad
from dynemb_jax.optimizers._adagrad import RowwiseAdagrad as RowwiseAdagrad
from dynemb_jax.optimizers._adagrad import adagrad as adagrad
from dynemb_jax.optimizers._adagrad import rowwise_adagrad as rowwise_adagrad
from dynemb_jax.optimizers._adam import Adam as Adam
from dynemb_jax.optimizers._adam import AdamW as AdamW
from dynemb_jax.optimizers._adam import PartialRowwiseAdam as PartialRowwiseAdam
from dynemb_jax.optimizers._adam import adam as adam
from dynemb_jax.optimizers._adam import adamw as adamw
from dynemb_jax.optimizers._adam import partial_rowwise_adam as partial_rowwise_adam
from dynemb_jax.optimizers._base import LearningRate as LearningRate
from dynemb_jax.optimizers._base import NativeRule as NativeRule
from dynemb_jax.optimizers._base import Optimizer as Optimizer
from dynemb_jax.optimizers._base import OutsideState as OutsideState
from dynemb_jax.optimizers._base import RowNumber as RowNumber
from dynemb_jax.optimizers._ftrl import Ftrl as Ftrl
from dynemb_jax.optimizers._ftrl import ftrl as ftrl
from dynemb_jax.optimizers._lamb import Lamb as Lamb
from dynemb_jax.optimizers._lamb import lamb as lamb
from dynemb_jax.optimizers._optax import FromOptax as FromOptax
from dynemb_jax.optimizers._optax import StateLeaf as StateLeaf
from dynemb_jax.optimizers._optax import from_optax as from_optax
from dynemb_jax.optimizers._rmsprop import Rmsprop as Rmsprop
from dynemb_jax.optimizers._rmsprop import rmsprop as rmsprop
from dynemb_jax.optimizers._sgd import Momentum as Momentum
from dynemb_jax.optimizers._sgd import Sgd as Sgd
from dynemb_jax.optimizers._sgd import momentum as momentum
from dynemb_jax.optimizers._sgd import sgd as sgd
