"""What optax lacks: updates of all rows of a matrix at once, in optax's form."""

import jax.numpy as jnp
import optax


def rowwise_adagrad(learning_rate, start, eps):
    def init(params):
        return jnp.full((len(params), 1), start)

    def update(grads, sums, params=None):
        del params
        sums = sums + jnp.square(grads).mean(1, keepdims=True)
        return -learning_rate * grads / (jnp.sqrt(sums) + eps), sums

    return optax.GradientTransformation(init, update)
