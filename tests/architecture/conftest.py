"""These laws are about files: they run once, on no back end in particular."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def platform() -> None:
    """Replaces the suite's fixture, which repeats every test per back end."""
