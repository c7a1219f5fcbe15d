"""Updates of one row in float64. A gradient here is already the sum over a row's duplicates."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Sgd:
    """w -= lr g."""

    learning_rate: object = 0.1

    def initial_state(self, dim):
        del dim
        return {}

    def update(self, row, state, grad, learning_rate, step):
        """Returns the new row and the new state."""
        del step
        return row - learning_rate * grad, state


@dataclass(frozen=True)
class Momentum:
    """Lazy momentum: t = g + mu t; w -= lr t, or lr (g + mu t) in Nesterov's form."""

    learning_rate: object = 0.1
    momentum: float = 0.9
    nesterov: bool = False

    def initial_state(self, dim):
        return {"trace": np.zeros(dim)}

    def update(self, row, state, grad, learning_rate, step):
        """Returns the new row and the new state."""
        del step
        trace = self.momentum * state["trace"] + grad
        ahead = self.momentum * trace + grad
        return row - learning_rate * (ahead if self.nesterov else trace), {"trace": trace}


@dataclass(frozen=True)
class Adagrad:
    """a += g**2; w -= lr g / sqrt(a + eps), and nothing moves where a is zero."""

    learning_rate: object = 0.05
    initial_accumulator: float = 0.1
    eps: float = 1e-7

    def initial_state(self, dim):
        return {"accumulator": np.full(dim, self.initial_accumulator)}

    def update(self, row, state, grad, learning_rate, step):
        """Returns the new row and the new state."""
        del step
        a = state["accumulator"] + grad**2
        scale = np.where(a == 0, 0.0, 1.0 / np.sqrt(a + self.eps))
        return row - learning_rate * grad * scale, {"accumulator": a}


@dataclass(frozen=True)
class RowwiseAdagrad:
    """a += mean(g**2), one a row; w -= lr g / (sqrt(a) + eps), still where that divides by 0."""

    learning_rate: object = 0.05
    initial_accumulator: float = 0.0
    eps: float = 1e-8

    def initial_state(self, dim):
        del dim
        return {"accumulator": np.float64(self.initial_accumulator)}

    def update(self, row, state, grad, learning_rate, step):
        """Returns the new row and the new state."""
        del step
        a = state["accumulator"] + np.mean(grad**2)
        divisor = np.sqrt(a) + self.eps
        return row - (0 if divisor == 0 else learning_rate * grad / divisor), {"accumulator": a}


@dataclass(frozen=True)
class Adam:
    """Lazy Adam; the bias correction counts steps of the group or updates of the row."""

    learning_rate: object = 0.01
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8
    bias_correction: str = "global"

    def initial_state(self, dim):
        state = {"mu": np.zeros(dim), "nu": np.zeros(dim)}
        return state | ({"count": np.int32(0)} if self.bias_correction == "row" else {})

    def update(self, row, state, grad, learning_rate, step):
        """Returns the new row and the new state."""
        mu = self.b1 * state["mu"] + (1 - self.b1) * grad
        nu = self.b2 * state["nu"] + (1 - self.b2) * grad**2
        new = {"mu": mu, "nu": nu}
        t = step + 1
        if self.bias_correction == "row":
            t = int(state["count"]) + 1
            new["count"] = np.int32(t)
        mu_hat, nu_hat = mu / (1 - self.b1**t), nu / (1 - self.b2**t)
        return row - learning_rate * mu_hat / (np.sqrt(nu_hat) + self.eps), new


@dataclass(frozen=True)
class L2Decay:
    """Another rule, given g + wd w."""

    rule: object
    weight_decay: float

    @property
    def learning_rate(self):
        return self.rule.learning_rate

    def initial_state(self, dim):
        return self.rule.initial_state(dim)

    def update(self, row, state, grad, learning_rate, step):
        """Returns the new row and the new state."""
        return self.rule.update(row, state, grad + self.weight_decay * row, learning_rate, step)


@dataclass(frozen=True)
class DecoupledDecay(L2Decay):
    """Another rule, and lr wd of the old row taken away."""

    def update(self, row, state, grad, learning_rate, step):
        """Returns the new row and the new state."""
        new, state = self.rule.update(row, state, grad, learning_rate, step)
        return new - learning_rate * self.weight_decay * row, state


@dataclass(frozen=True)
class Clipped:
    """Another rule, given g scaled down to the norm that it may have."""

    rule: object
    max_grad_norm: float

    @property
    def learning_rate(self):
        return self.rule.learning_rate

    def initial_state(self, dim):
        return self.rule.initial_state(dim)

    def update(self, row, state, grad, learning_rate, step):
        """Returns the new row and the new state."""
        norm = np.linalg.norm(grad)
        if norm > self.max_grad_norm:
            grad = grad * (self.max_grad_norm / norm)
        return self.rule.update(row, state, grad, learning_rate, step)


@dataclass(frozen=True)
class Lamb:
    """Adam's direction plus wd w, times |w| / |direction|, which is 1 where a norm is 0."""

    learning_rate: object = 0.01
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-6
    weight_decay: float = 0.0

    def initial_state(self, dim):
        return {"mu": np.zeros(dim), "nu": np.zeros(dim)}

    def update(self, row, state, grad, learning_rate, step):
        """Returns the new row and the new state."""
        mu = self.b1 * state["mu"] + (1 - self.b1) * grad
        nu = self.b2 * state["nu"] + (1 - self.b2) * grad**2
        mu_hat, nu_hat = mu / (1 - self.b1 ** (step + 1)), nu / (1 - self.b2 ** (step + 1))
        direction = mu_hat / (np.sqrt(nu_hat) + self.eps) + self.weight_decay * row
        norms = np.linalg.norm(row), np.linalg.norm(direction)
        ratio = 1.0 if 0.0 in norms else norms[0] / norms[1]
        return row - learning_rate * ratio * direction, {"mu": mu, "nu": nu}


@dataclass(frozen=True)
class Rmsprop:
    """v = d v + (1 - d) g**2; w -= lr g / sqrt(v + eps), still where that divides by 0."""

    learning_rate: object = 0.01
    decay: float = 0.9
    eps: float = 1e-8
    initial_scale: float = 0.0

    def initial_state(self, dim):
        return {"nu": np.full(dim, self.initial_scale)}

    def update(self, row, state, grad, learning_rate, step):
        """Returns the new row and the new state."""
        del step
        nu = self.decay * state["nu"] + (1 - self.decay) * grad**2
        root = np.sqrt(nu + self.eps)
        moved = np.divide(learning_rate * grad, root, out=np.zeros_like(row), where=root != 0)
        return row - moved, {"nu": nu}


@dataclass(frozen=True)
class PartialRowwiseAdam:
    """Lazy Adam whose second moment is one number a row, of the mean of g**2."""

    learning_rate: object = 0.01
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8
    bias_correction: str = "global"

    def initial_state(self, dim):
        state = {"mu": np.zeros(dim), "nu": np.float64(0)}
        return state | ({"count": np.int32(0)} if self.bias_correction == "row" else {})

    def update(self, row, state, grad, learning_rate, step):
        """Returns the new row and the new state."""
        mu = self.b1 * state["mu"] + (1 - self.b1) * grad
        nu = self.b2 * state["nu"] + (1 - self.b2) * np.mean(grad**2)
        new = {"mu": mu, "nu": nu}
        t = step + 1
        if self.bias_correction == "row":
            t = int(state["count"]) + 1
            new["count"] = np.int32(t)
        divisor = np.sqrt(nu / (1 - self.b2**t)) + self.eps
        moved = 0 if divisor == 0 else learning_rate * mu / (1 - self.b1**t) / divisor
        return row - moved, new


@dataclass(frozen=True)
class Ftrl:
    """Algorithm 1 of McMahan et al., 2013; its z is the state's less q w.

    q = (beta + sqrt(n + initial_accumulator)) / lr; nothing moves where it is 0.
    """

    learning_rate: object = 0.1
    l1: float = 0.0
    l2: float = 0.0
    beta: float = 0.0
    initial_accumulator: float = 0.1

    def initial_state(self, dim):
        return {"z": np.zeros(dim), "n": np.zeros(dim)}

    def _q(self, n, learning_rate):
        return (self.beta + np.sqrt(n + self.initial_accumulator)) / learning_rate

    def update(self, row, state, grad, learning_rate, step):
        """Returns the new row and the new state."""
        del step
        n = state["n"] + grad**2
        before, q = self._q(state["n"], learning_rate), self._q(n, learning_rate)
        z = state["z"] - before * row
        z = z + grad - (q - before) * row
        divisor = np.where(q == 0, 1.0, q + self.l2)
        new = np.where(np.abs(z) <= self.l1, 0.0, -(z - np.sign(z) * self.l1) / divisor)
        new = np.where(q == 0, row, new)
        return new, {"z": np.where(q == 0, state["z"], z + q * new), "n": n}
