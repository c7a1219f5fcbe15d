"""FTRL-Proximal."""

from dataclasses import dataclass
from typing import ClassVar

from dynemb_jax.optimizers._base import LearningRate, NativeRule, Optimizer, check_number


@dataclass(frozen=True)
class Ftrl(Optimizer):
    """See :func:`ftrl`."""

    l1: float = 0.0
    l2: float = 0.0
    beta: float = 0.0
    initial_accumulator: float = 0.1
    vectors: ClassVar[tuple[str, ...]] = ("z", "n")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.learning_rate):
            check_number("learning_rate", self.learning_rate, 0.0)
        check_number("l1", self.l1, 0.0)
        check_number("l2", self.l2, 0.0)
        check_number("beta", self.beta, 0.0)
        check_number("initial_accumulator", self.initial_accumulator, 0.0)

    def native(self) -> NativeRule:
        return NativeRule(
            optimizer=12,
            epsilon=self.beta,
            l1=self.l1,
            l2=self.l2,
            initial_sum=self.initial_accumulator,
        )


def ftrl(
    learning_rate: LearningRate,
    *,
    l1: float = 0.0,
    l2: float = 0.0,
    beta: float = 0.0,
    initial_accumulator: float = 0.1,
    max_grad_norm: float | None = None,
) -> Ftrl:
    """FTRL-Proximal: Adagrad's steps, with penalties that make columns exactly zero.

    McMahan et al., KDD 2013 ("Ad click prediction: a view from the trenches"), Algorithm 1: with
    ``q = (beta + sqrt(n + initial_accumulator)) / lr``, after ``n += g**2``, and the ``w`` before::

        u = z + g - q * w
        w = 0 if abs(u) <= l1 else -(u - sign(u) * l1) / (q + l2)
        z = u + q * w  # of the new w

    and nothing where ``q`` is 0. Both states begin with 0: ``n`` is the sum of squares without
    ``initial_accumulator``, and ``z`` is the paper's plus ``q * w``. For a row that begins with
    0, at one learning rate, this is Algorithm 1. Any other row keeps its first value until its
    first update; then ``beta`` and ``initial_accumulator``, which weigh like gradients seen
    before, hold it there, and ``l1``, ``l2`` and gradients move it. Without penalties that is
    ``w -= lr * g / (beta + sqrt(n + initial_accumulator))``. A schedule changes steps, where it
    would rescale weights computed from the paper's ``z``. Where ``l1`` shall give rows of zeros,
    let tables begin with ``initializers.constant(0.0)``.

    Args:
        learning_rate: a number or a schedule (callable of the step), not negative.
        l1: penalty on ``abs(w)``.
        l2: penalty on ``w**2 / 2``.
        beta: added outside the root.
        initial_accumulator: added under the root.
        max_grad_norm: the summed gradient of a row whose L2 norm is larger is scaled down to it,
            before anything else; None: no bound.
    """
    return Ftrl(learning_rate, l1, l2, beta, initial_accumulator, max_grad_norm=max_grad_norm)
