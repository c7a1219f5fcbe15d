"""Adam, with weight decay apart, and with one second moment a row."""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from dynemb_jax.errors import ConfigError
from dynemb_jax.optimizers._base import (
    Decaying,
    LearningRate,
    NativeRule,
    Optimizer,
    RowNumber,
    check_number,
)


@dataclass(frozen=True)
class _Moments(Optimizer):
    """The numbers of Adam and its kin."""

    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8
    bias_correction: str = "global"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("b1", self.b1, 0.0, 1.0)
        check_number("b2", self.b2, 0.0, 1.0)
        check_number("eps", self.eps, 0.0)
        if self.bias_correction not in ("global", "row"):
            raise ConfigError(
                f"bias_correction must be 'global' or 'row', got {self.bias_correction!r}; "
                "pass 'global' to count the updates of all tables, 'row' for those of the row."
            )

    @property
    def by_row(self) -> bool:
        """Whether a row counts its own updates."""
        return self.bias_correction == "row"

    @property
    def scalars(self) -> tuple[RowNumber, ...]:
        """The row's own step count, where bias correction uses it."""
        return (RowNumber("count", np.dtype(np.int32)),) if self.by_row else ()

    def _native(self, kind: int, weight_decay: float) -> NativeRule:
        return NativeRule(
            optimizer=kind,
            beta1=self.b1,
            beta2=self.b2,
            epsilon=self.eps,
            weight_decay=weight_decay,
        )


@dataclass(frozen=True)
class Adam(_Moments, Decaying):
    """See :func:`adam`."""

    vectors: ClassVar[tuple[str, ...]] = ("mu", "nu")

    def native(self) -> NativeRule:
        return self._native(3 if self.by_row else 2, self.weight_decay)


def adam(
    learning_rate: LearningRate,
    *,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    bias_correction: str = "global",
    weight_decay: float = 0.0,
    max_grad_norm: float | None = None,
) -> Adam:
    """Lazy Adam: moments decay and rows move only in steps that contain the row.

    ``mu = b1 mu + (1 - b1) g; nu = b2 nu + (1 - b2) g**2;
    w -= lr * (mu / (1 - b1**t)) / (sqrt(nu / (1 - b2**t)) + eps)``.
    Kingma, Ba, ICLR 2015, in the form of ``optax.adam``.

    Args:
        learning_rate: a number or a schedule (callable of the step).
        b1: decay of the first moment.
        b2: decay of the second moment.
        eps: added outside the root.
        bias_correction: what ``t`` counts. "global": the updates of the Embeddings including
            this one, so a key first seen at step 10**6 gets nearly no correction. "row": the
            updates of the row itself (4 to 16 bytes more a row), so its first step is as large
            as any row's first step.
        weight_decay: ``weight_decay * w`` is added to ``g``, before the moments; see also
            :func:`adamw`.
        max_grad_norm: the summed gradient of a row whose L2 norm is larger is scaled down to it,
            before anything else; None: no bound.
    """
    return Adam(
        learning_rate,
        b1,
        b2,
        eps,
        bias_correction,
        weight_decay=weight_decay,
        max_grad_norm=max_grad_norm,
    )


@dataclass(frozen=True)
class AdamW(_Moments):
    """See :func:`adamw`."""

    weight_decay: float = field(default=1e-4, kw_only=True)
    vectors: ClassVar[tuple[str, ...]] = ("mu", "nu")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("weight_decay", self.weight_decay, 0.0)

    def native(self) -> NativeRule:
        return self._native(9 if self.by_row else 8, self.weight_decay)


def adamw(
    learning_rate: LearningRate,
    *,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 1e-4,
    bias_correction: str = "global",
    max_grad_norm: float | None = None,
) -> AdamW:
    """Lazy Adam whose rows decay beside its steps, which their moments do not see.

    As :func:`adam`, and ``w -= lr * weight_decay * w``, of the ``w`` before the step.
    Loshchilov, Hutter, ICLR 2019, with ``lr`` in the decay as in ``optax.adamw``. A row decays in
    steps that contain it, so keys that are rare keep their size longer.

    Args:
        learning_rate: a number or a schedule (callable of the step).
        b1: decay of the first moment.
        b2: decay of the second moment.
        eps: added outside the root.
        weight_decay: share of a row that a step takes, times ``lr``.
        bias_correction: "global" or "row", as in :func:`adam`.
        max_grad_norm: the summed gradient of a row whose L2 norm is larger is scaled down to it,
            before anything else; None: no bound.
    """
    return AdamW(
        learning_rate,
        b1,
        b2,
        eps,
        bias_correction,
        weight_decay=weight_decay,
        max_grad_norm=max_grad_norm,
    )


@dataclass(frozen=True)
class PartialRowwiseAdam(_Moments):
    """See :func:`partial_rowwise_adam`."""

    vectors: ClassVar[tuple[str, ...]] = ("mu",)

    @property
    def scalars(self) -> tuple[RowNumber, ...]:
        """The second moment, and the row's own step count where bias correction uses it."""
        return (RowNumber("nu", np.dtype(np.float32)), *super().scalars)

    def native(self) -> NativeRule:
        return self._native(11 if self.by_row else 10, 0.0)


def partial_rowwise_adam(
    learning_rate: LearningRate,
    *,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    bias_correction: str = "global",
    max_grad_norm: float | None = None,
) -> PartialRowwiseAdam:
    """Lazy Adam with one second moment a row: little more than half of Adam's state.

    As :func:`adam`, but ``nu = b2 nu + (1 - b2) mean(g**2)`` over the row, a number, and nothing
    moves where ``sqrt(nu)`` and ``eps`` are 0. Kingma, Ba, ICLR 2015; the mean over the row as in
    FBGEMM's partial row-wise Adam.

    Args:
        learning_rate: a number or a schedule (callable of the step).
        b1: decay of the first moment.
        b2: decay of the second moment.
        eps: added outside the root.
        bias_correction: "global" or "row", as in :func:`adam`; "row" takes no more memory here.
        max_grad_norm: the summed gradient of a row whose L2 norm is larger is scaled down to it,
            before anything else; None: no bound.
    """
    return PartialRowwiseAdam(
        learning_rate, b1, b2, eps, bias_correction, max_grad_norm=max_grad_norm
    )
