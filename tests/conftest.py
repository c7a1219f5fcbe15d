"""Platform, strictness and Hypothesis profiles for the whole suite."""

import jax
import pytest
from hypothesis import HealthCheck, Phase, settings

# Every test runs once on each of these.
PLATFORMS = [pytest.param("cpu"), pytest.param("gpu", marks=pytest.mark.gpu)]

settings.register_profile(
    "default",
    max_examples=12,
    derandomize=True,
    deadline=None,
    database=None,
    # Explaining a failure takes longer than finding and shrinking it.
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
)
settings.register_profile(
    "long",
    parent=settings.get_profile("default"),
    max_examples=100,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("default")


def pytest_configure(config):
    config.addinivalue_line("markers", "long: many examples; runs only with -m long")
    jax.config.update("jax_enable_x64", False)
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    jax.config.update("jax_numpy_rank_promotion", "raise")


def pytest_collection_modifyitems(config, items):
    asked_for = config.getoption("-m") or ""
    for name in ("long", "big"):
        if name in asked_for:
            continue
        for item in items:
            if item.get_closest_marker(name):
                item.add_marker(pytest.mark.skip(reason=f"runs with -m {name}"))


@pytest.fixture(params=PLATFORMS, scope="session", autouse=True)
def platform(request):
    """The back end that arrays live on unless a test says otherwise."""
    try:
        device = jax.devices(request.param)[0]
    except RuntimeError:
        pytest.skip(f"there is no {request.param} here")
    with jax.default_device(device):
        yield request.param
