"""These laws are the GPU's: they run once, on the first card."""

import jax
import pytest

import dynemb_jax as dj


@pytest.fixture(params=[pytest.param("gpu", marks=pytest.mark.gpu)], scope="session", autouse=True)
def platform(request):
    """Replaces the suite's fixture, which repeats every test per back end."""
    try:
        device = jax.devices(request.param)[0]
    except RuntimeError:
        pytest.skip(f"there is no {request.param} here")
    with jax.default_device(device):
        yield request.param


@pytest.fixture
def closing():
    """Takes collections to close when the test ends: compiled functions keep their memory."""
    made = []

    def keep(emb):
        made.append(emb)
        return emb

    yield keep
    for emb in made:
        dj.close(emb)
