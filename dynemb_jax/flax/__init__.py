"""Modules for Flax: :mod:`dynemb_jax.flax.nnx` and :mod:`dynemb_jax.flax.linen`.

Import the one you use; ``import dynemb_jax`` imports neither, nor Flax.
"""

try:
    import flax as _flax  # noqa: F401 (only to say what is missing)
except ImportError as error:
    raise ImportError(
        f"dynemb_jax.flax needs Flax, which is not installed ({error}); run "
        "'pip install dynemb-jax[flax]'."
    ) from error
