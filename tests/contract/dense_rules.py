"""What optax lacks: updates of all rows of a matrix at once, in optax's form."""

import jax
import jax.numpy as jnp
import optax


def by_row(transformation):
    """The transformation as if each row of the matrix were a model of its own."""
    return optax.GradientTransformation(
        jax.vmap(transformation.init), jax.vmap(transformation.update)
    )


def rowwise_adagrad(learning_rate, start, eps):
    def init(params):
        return jnp.full((len(params), 1), start)

    def update(grads, sums, params=None):
        del params
        sums = sums + jnp.square(grads).mean(1, keepdims=True)
        return -learning_rate * grads / (jnp.sqrt(sums) + eps), sums

    return optax.GradientTransformation(init, update)


def partial_rowwise_adam(learning_rate, b1=0.9, b2=0.999, eps=1e-8):
    def init(params):
        return 0, jnp.zeros_like(params), jnp.zeros((len(params), 1))

    def update(grads, state, params=None):
        del params
        t, mu, nu = state[0] + 1, state[1], state[2]
        mu = b1 * mu + (1 - b1) * grads
        nu = b2 * nu + (1 - b2) * jnp.square(grads).mean(1, keepdims=True)
        root = jnp.sqrt(nu / (1 - b2**t))
        return -learning_rate * mu / (1 - b1**t) / (root + eps), (t, mu, nu)

    return optax.GradientTransformation(init, update)


def ftrl(learning_rate, l1=0.0, l2=0.0, beta=0.0, start=0.1):
    """Algorithm 1 of McMahan et al., 2013, line by line.

    Its sums begin with the proximal term of beta and start, centred at the first rows.
    """

    def init(params):
        centre = -(beta + jnp.sqrt(start)) / learning_rate * params
        return centre, jnp.full_like(params, start)

    def update(grads, state, params):
        z, n = state
        sigma = (jnp.sqrt(n + grads**2) - jnp.sqrt(n)) / learning_rate
        z = z + grads - sigma * params
        n = n + grads**2
        strength = (beta + jnp.sqrt(n)) / learning_rate + l2
        new = jnp.where(jnp.abs(z) <= l1, 0.0, -(z - jnp.sign(z) * l1) / strength)
        return new - params, (z, n)

    return optax.GradientTransformation(init, update)
