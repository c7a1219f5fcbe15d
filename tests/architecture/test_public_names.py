"""The public surface: small, sorted, documented."""

import importlib
import inspect
import types

import pytest

import dynemb_jax as dj

LIMIT = 40


def test_names_are_few_and_sorted():
    assert len(dj.__all__) <= LIMIT
    assert list(dj.__all__) == sorted(dj.__all__)
    assert len(set(dj.__all__)) == len(dj.__all__)


def test_nothing_public_hides_from_the_list():
    visible = {
        name
        for name, value in vars(dj).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }

    assert visible <= set(dj.__all__)


@pytest.mark.parametrize("name", sorted(dj.__all__))
def test_name_is_documented(name: str):
    value = getattr(dj, name)
    if not (inspect.isroutine(value) or inspect.isclass(value) or inspect.ismodule(value)):
        pytest.skip("a value carries no docstring of its own; docs/api.md has it")

    text = inspect.getdoc(value) or ""

    assert len(text.split()) >= 4, f"dj.{name} needs a docstring"
    # dataclass writes "Name(field: type, ...)" when the author wrote nothing.
    assert not text.startswith(f"{name}(")


@pytest.mark.parametrize("module", ["dynemb_jax.flax.nnx", "dynemb_jax.flax.linen"])
def test_optional_module_lists_what_it_defines(module: str):
    pytest.importorskip("flax")
    names = importlib.import_module(module)

    defined = {
        name
        for name, value in vars(names).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module
    }

    assert defined <= set(names.__all__) <= set(vars(names))
    for name in defined:
        assert len((inspect.getdoc(getattr(names, name)) or "").split()) >= 4, name
