"""Examples import each other by plain names, as a script beside them would."""

import pathlib
import sys

import pytest

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"

if str(EXAMPLES) not in sys.path:
    sys.path.append(str(EXAMPLES))


@pytest.fixture(scope="session", autouse=True)
def platform() -> None:
    """Replaces the suite's fixture: parsers and ranks have no back end."""
