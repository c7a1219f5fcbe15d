"""docs/reference.md is what tools/reference.py makes of the docstrings."""

import importlib.util
import pathlib

import pytest

import dynemb_jax as dj

pytest.importorskip("flax")

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def reference():
    spec = importlib.util.spec_from_file_location("reference", ROOT / "tools" / "reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date(reference):
    page = (ROOT / "docs" / "reference.md").read_text()

    assert page == reference.render(), "run python tools/reference.py"


def test_every_public_name_has_an_entry_with_text(reference):
    page = (ROOT / "docs" / "reference.md").read_text()
    library = page.split("\n## ")[1]

    entries = {part.split("\n")[0]: part for part in library.split("\n### ")[1:]}

    assert list(entries) == list(dj.__all__)
    assert all(len(entry.split()) > 3 for entry in entries.values())


def test_a_docstring_becomes_markdown(reference):
    docstring = """Does ``this`` with :class:`Keys`.

    Shown so::

        a = 1

    and on.

    Args:
        first: of two, which
            goes on: here.
        *rest: all.

    Returns:
        A thing.

    Raises:
        KeyError, ValueError.
        TypeError: never.

    Example:
        >>> f()    # doctest: +SKIP

    Behind.
    """

    expected = """Does `this` with `Keys`.

Shown so:

```text
a = 1
```

and on.

*Args*

- `first`: of two, which
  goes on: here.
- `*rest`: all.

*Returns*: A thing.

*Raises*

- KeyError, ValueError.
- `TypeError`: never.

*Example*

```text
>>> f()
```

Behind."""
    assert reference.markdown(docstring) == expected


def test_a_signature_keeps_its_stars_defaults_and_order(reference):
    def f(self, a, b: int = 2, *rest: str, c, d: "int | None" = None, **more) -> "str":
        pass

    node = reference.definition(f)

    shown = reference.parameters(node.args, bound=True)
    assert reference.signature("f", shown, node.returns) == (
        "```text\nf(a, b: int = 2, *rest: str, c, d: int | None = None, **more) -> str\n```"
    )
