"""Pooling of bags and its derivatives, written out, in float64.

values: [..., L, dim]; present and weights: [..., L]; pooled rows and ct_out: [..., dim].
"""

import numpy as np

COMBINERS = ("sum", "mean", "sqrtn")


def _effective(values, present, weights):
    shape = np.shape(values)[:-1]
    w = np.ones(shape) if weights is None else np.asarray(weights, np.float64)
    return w if present is None else w * present


def _divisor(combiner, w):
    """The number each bag's sum is divided by: [...]."""
    if combiner == "sum":
        return np.ones(w.shape[:-1])
    return w.sum(-1) if combiner == "mean" else np.sqrt((w**2).sum(-1))


def _reciprocal(divisor):
    """1 / divisor, and 0 for the bags that have nothing to be divided by."""
    return np.divide(1.0, divisor, out=np.zeros_like(divisor), where=divisor != 0)


def pool(combiner, values, present=None, weights=None):
    """The pooled rows [..., dim]."""
    w = _effective(values, present, weights)
    total = (w[..., None] * np.asarray(values, np.float64)).sum(-2)
    return total * _reciprocal(_divisor(combiner, w))[..., None]


def pool_vjp(combiner, values, ct_out, present=None, weights=None):
    """Returns (ct_values [..., L, dim], ct_weights [..., L]).

    out = S / c with S = sum w v. Hence ct_v = (w / c) ct, and
    ct_w = (v . ct) / c - (out . ct) (dc/dw) / c, with dc/dw = 0, 1 and w / c for sum, mean, sqrtn.
    """
    values = np.asarray(values, np.float64)
    ct_out = np.asarray(ct_out, np.float64)
    w = _effective(values, present, weights)
    inverse = _reciprocal(_divisor(combiner, w))[..., None]
    out = pool(combiner, values, present, weights)
    ct_values = (w * inverse)[..., None] * ct_out[..., None, :]
    slope = {"sum": np.zeros_like(w), "mean": np.ones_like(w), "sqrtn": w * inverse}[combiner]
    along_row = (values * ct_out[..., None, :]).sum(-1)
    along_out = (out * ct_out).sum(-1)[..., None]
    ct_weights = (along_row - along_out * slope) * inverse
    return ct_values, ct_weights if present is None else ct_weights * present
