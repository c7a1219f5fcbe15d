"""The library's plug-ins, each beside its reference: a new one is one line here.

The contract suites run over these tables; others use them to pick a plug-in by name.
"""

import optax

import dynemb_jax as dj
from tests.oracle import admission, optimizers, row_init


def decayed(transformation):
    """The transformation, of g + w / 2."""
    return optax.chain(optax.add_decayed_weights(0.5), transformation)


OPTIMIZERS = {
    "sgd": (dj.optimizers.sgd(0.1), optimizers.Sgd(0.1)),
    "momentum": (dj.optimizers.momentum(0.1), optimizers.Momentum(0.1)),
    "momentum_other_decay": (
        dj.optimizers.momentum(0.1, momentum=0.5),
        optimizers.Momentum(0.1, momentum=0.5),
    ),
    "nesterov": (
        dj.optimizers.momentum(0.1, nesterov=True),
        optimizers.Momentum(0.1, nesterov=True),
    ),
    "adagrad": (dj.optimizers.adagrad(0.05), optimizers.Adagrad(0.05)),
    "adagrad_other_start": (
        dj.optimizers.adagrad(0.05, initial_accumulator=0.0, eps=1e-3),
        optimizers.Adagrad(0.05, initial_accumulator=0.0, eps=1e-3),
    ),
    "rowwise_adagrad": (dj.optimizers.rowwise_adagrad(0.05), optimizers.RowwiseAdagrad(0.05)),
    "rowwise_adagrad_other_start": (
        dj.optimizers.rowwise_adagrad(0.05, initial_accumulator=0.5, eps=1e-3),
        optimizers.RowwiseAdagrad(0.05, initial_accumulator=0.5, eps=1e-3),
    ),
    "rowwise_adagrad_without_eps": (
        dj.optimizers.rowwise_adagrad(0.05, eps=0.0),
        optimizers.RowwiseAdagrad(0.05, eps=0.0),
    ),
    "adam": (dj.optimizers.adam(0.01), optimizers.Adam(0.01)),
    "adam_row": (
        dj.optimizers.adam(0.01, bias_correction="row"),
        optimizers.Adam(0.01, bias_correction="row"),
    ),
    "adam_other_decay": (
        dj.optimizers.adam(0.01, b1=0.5, b2=0.75, eps=1e-3),
        optimizers.Adam(0.01, b1=0.5, b2=0.75, eps=1e-3),
    ),
    "rmsprop": (dj.optimizers.rmsprop(0.01), optimizers.Rmsprop(0.01)),
    "rmsprop_other_start": (
        dj.optimizers.rmsprop(0.01, decay=0.5, eps=1e-3, initial_scale=1.0),
        optimizers.Rmsprop(0.01, decay=0.5, eps=1e-3, initial_scale=1.0),
    ),
    "rmsprop_without_eps": (
        dj.optimizers.rmsprop(0.01, eps=0.0),
        optimizers.Rmsprop(0.01, eps=0.0),
    ),
    "adamw": (
        dj.optimizers.adamw(0.01),
        optimizers.DecoupledDecay(optimizers.Adam(0.01), 1e-4),
    ),
    "adamw_strong": (
        dj.optimizers.adamw(0.01, b1=0.5, b2=0.75, eps=1e-3, weight_decay=2.0),
        optimizers.DecoupledDecay(optimizers.Adam(0.01, b1=0.5, b2=0.75, eps=1e-3), 2.0),
    ),
    "adamw_row": (
        dj.optimizers.adamw(0.01, weight_decay=2.0, bias_correction="row"),
        optimizers.DecoupledDecay(optimizers.Adam(0.01, bias_correction="row"), 2.0),
    ),
    "partial_rowwise_adam": (
        dj.optimizers.partial_rowwise_adam(0.01),
        optimizers.PartialRowwiseAdam(0.01),
    ),
    "partial_rowwise_adam_row": (
        dj.optimizers.partial_rowwise_adam(0.01, bias_correction="row"),
        optimizers.PartialRowwiseAdam(0.01, bias_correction="row"),
    ),
    "partial_rowwise_adam_other_decay": (
        dj.optimizers.partial_rowwise_adam(0.01, b1=0.5, b2=0.75, eps=1e-3),
        optimizers.PartialRowwiseAdam(0.01, b1=0.5, b2=0.75, eps=1e-3),
    ),
    "ftrl": (dj.optimizers.ftrl(0.1), optimizers.Ftrl(0.1)),
    "ftrl_l1": (dj.optimizers.ftrl(0.1, l1=0.8), optimizers.Ftrl(0.1, l1=0.8)),
    "ftrl_all": (
        dj.optimizers.ftrl(0.2, l1=0.3, l2=0.5, beta=1.0, initial_accumulator=0.0),
        optimizers.Ftrl(0.2, l1=0.3, l2=0.5, beta=1.0, initial_accumulator=0.0),
    ),
    "ftrl_without_start": (
        dj.optimizers.ftrl(0.1, l2=0.5, initial_accumulator=0.0),
        optimizers.Ftrl(0.1, l2=0.5, initial_accumulator=0.0),
    ),
    "lamb": (dj.optimizers.lamb(0.01), optimizers.Lamb(0.01)),
    "lamb_decay": (
        dj.optimizers.lamb(0.1, b1=0.5, b2=0.75, eps=1e-3, weight_decay=0.5),
        optimizers.Lamb(0.1, b1=0.5, b2=0.75, eps=1e-3, weight_decay=0.5),
    ),
    # The gradient decays before the rule sees it.
    "sgd_decay": (
        dj.optimizers.sgd(0.1, weight_decay=0.5),
        optimizers.L2Decay(optimizers.Sgd(0.1), 0.5),
    ),
    "momentum_decay": (
        dj.optimizers.momentum(0.1, weight_decay=0.5),
        optimizers.L2Decay(optimizers.Momentum(0.1), 0.5),
    ),
    "nesterov_decay": (
        dj.optimizers.momentum(0.1, nesterov=True, weight_decay=0.5),
        optimizers.L2Decay(optimizers.Momentum(0.1, nesterov=True), 0.5),
    ),
    "adagrad_decay": (
        dj.optimizers.adagrad(0.05, weight_decay=0.5),
        optimizers.L2Decay(optimizers.Adagrad(0.05), 0.5),
    ),
    "rowwise_adagrad_decay": (
        dj.optimizers.rowwise_adagrad(0.05, weight_decay=0.5),
        optimizers.L2Decay(optimizers.RowwiseAdagrad(0.05), 0.5),
    ),
    "rmsprop_decay": (
        dj.optimizers.rmsprop(0.01, weight_decay=0.5),
        optimizers.L2Decay(optimizers.Rmsprop(0.01), 0.5),
    ),
    "adam_decay": (
        dj.optimizers.adam(0.01, weight_decay=0.5),
        optimizers.L2Decay(optimizers.Adam(0.01), 0.5),
    ),
    "adam_row_decay": (
        dj.optimizers.adam(0.01, bias_correction="row", weight_decay=0.5),
        optimizers.L2Decay(optimizers.Adam(0.01, bias_correction="row"), 0.5),
    ),
}

# Rules with clipping around them, and rules that XLA runs.
COMPOSED_OPTIMIZERS = {
    # The summed gradient of a row is clipped before weight decay and rule see it.
    "sgd_clip": (
        dj.optimizers.sgd(0.1, max_grad_norm=0.5),
        optimizers.Clipped(optimizers.Sgd(0.1), 0.5),
    ),
    "sgd_decay_clip": (
        dj.optimizers.sgd(0.1, weight_decay=0.5, max_grad_norm=0.5),
        optimizers.Clipped(optimizers.L2Decay(optimizers.Sgd(0.1), 0.5), 0.5),
    ),
    "momentum_clip": (
        dj.optimizers.momentum(0.1, max_grad_norm=0.5),
        optimizers.Clipped(optimizers.Momentum(0.1), 0.5),
    ),
    "adagrad_clip": (
        dj.optimizers.adagrad(0.05, max_grad_norm=0.5),
        optimizers.Clipped(optimizers.Adagrad(0.05), 0.5),
    ),
    "rowwise_adagrad_clip": (
        dj.optimizers.rowwise_adagrad(0.05, max_grad_norm=0.5),
        optimizers.Clipped(optimizers.RowwiseAdagrad(0.05), 0.5),
    ),
    "rmsprop_clip": (
        dj.optimizers.rmsprop(0.01, max_grad_norm=0.5),
        optimizers.Clipped(optimizers.Rmsprop(0.01), 0.5),
    ),
    "adam_clip": (
        dj.optimizers.adam(0.01, max_grad_norm=2.0),
        optimizers.Clipped(optimizers.Adam(0.01), 2.0),
    ),
    "adamw_clip": (
        dj.optimizers.adamw(0.01, weight_decay=2.0, max_grad_norm=0.5),
        optimizers.Clipped(optimizers.DecoupledDecay(optimizers.Adam(0.01), 2.0), 0.5),
    ),
    "partial_rowwise_adam_clip": (
        dj.optimizers.partial_rowwise_adam(0.01, max_grad_norm=0.5),
        optimizers.Clipped(optimizers.PartialRowwiseAdam(0.01), 0.5),
    ),
    "ftrl_clip": (
        dj.optimizers.ftrl(0.1, max_grad_norm=0.5),
        optimizers.Clipped(optimizers.Ftrl(0.1), 0.5),
    ),
    "lamb_clip": (
        dj.optimizers.lamb(0.01, max_grad_norm=2.0),
        optimizers.Clipped(optimizers.Lamb(0.01), 2.0),
    ),
    "from_optax": (dj.optimizers.from_optax(optax.adam(0.01)), optimizers.Adam(0.01)),
    "from_optax_row": (
        dj.optimizers.from_optax(optax.adam(0.01), count="row"),
        optimizers.Adam(0.01, bias_correction="row"),
    ),
    "from_optax_momentum": (
        dj.optimizers.from_optax(optax.sgd(0.1, momentum=0.9)),
        optimizers.Momentum(0.1),
    ),
    "from_optax_stateless": (
        dj.optimizers.from_optax(decayed(optax.sgd(0.1))),
        optimizers.L2Decay(optimizers.Sgd(0.1), 0.5),
    ),
    "from_optax_lamb": (
        dj.optimizers.from_optax(optax.lamb(0.01), rowwise=True),
        optimizers.Lamb(0.01),
    ),
    "from_optax_clip": (
        dj.optimizers.from_optax(optax.adam(0.01), max_grad_norm=2.0),
        optimizers.Clipped(optimizers.Adam(0.01), 2.0),
    ),
}
ALL_OPTIMIZERS = OPTIMIZERS | COMPOSED_OPTIMIZERS

INITIALIZERS = {
    "constant": (dj.initializers.constant(0.3), row_init.Constant(0.3)),
    "uniform": (dj.initializers.uniform(), row_init.Uniform()),
    "uniform_scaled": (dj.initializers.uniform(0.7), row_init.Uniform(0.7)),
    "normal": (dj.initializers.normal(), row_init.Normal()),
    "normal_scaled": (dj.initializers.normal(2.5), row_init.Normal(2.5)),
    "truncated_normal": (dj.initializers.truncated_normal(), row_init.TruncatedNormal()),
    "truncated_normal_scaled": (
        dj.initializers.truncated_normal(0.02),
        row_init.TruncatedNormal(0.02),
    ),
}

# Beside a rule, how to make its reference: it remembers what it has seen.
ADMISSIONS = {
    "everyone": (None, admission.Everyone),
    "second_id": (
        dj.admission.frequency(2, counters=1 << 12),
        lambda: admission.Sketched(2, 1 << 12),
    ),
    # So few counters that keys collide, and are halved often.
    "crowded": (dj.admission.frequency(3, counters=100), lambda: admission.Sketched(3, 128)),
    "drawn": (dj.admission.probability(0.3), lambda: admission.Drawn(0.3)),
}
