"""Writes docs/reference.md: every public name with its signature and docstring.

Signatures come from the source, so that the page is the same on every version of Python and JAX.
``python tools/reference.py --check`` only says whether the page is up to date.
"""

import ast
import importlib
import inspect
import pathlib
import re
import sys
import textwrap
from collections.abc import Iterator
from types import ModuleType
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference.md"
MODULES = (
    "dynemb_jax",
    "dynemb_jax.optimizers",
    "dynemb_jax.initializers",
    "dynemb_jax.eviction",
    "dynemb_jax.admission",
    "dynemb_jax.errors",
    "dynemb_jax.flax.nnx",
    "dynemb_jax.flax.linen",
)
WIDTH = 100
HEAD = """# Names

Every public name, from its docstring; [api.md](api.md) goes by task. `python tools/reference.py`
writes this page, do not edit it.
"""
SECTION = re.compile(r"^(Args|Attributes|Returns|Raises|Example):$")
ITEM = re.compile(r"^(\*{0,2}\w[\w, ]*): (.*)$")
ROLE = re.compile(r":\w+:`([^`]+)`")


def public_names(module: ModuleType) -> list[str]:
    """Names of ``__all__``; without one, functions, exceptions and what reads as a function."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and getattr(value, "__module__", "").startswith(module.__name__)
        and (
            inspect.isfunction(value)
            or (inspect.isclass(value) and (issubclass(value, Exception) or name.islower()))
        )
    ]


def definition(value: Any) -> Any:
    """The syntax tree of a function or class."""
    return ast.parse(textwrap.dedent(inspect.getsource(value))).body[0]


def parameters(arguments: ast.arguments, *, bound: bool) -> list[str]:
    """What stands between the parentheses, ``self`` left out."""
    positional = [*arguments.posonlyargs, *arguments.args]
    missing: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
    shown = [
        _parameter(*pair) for pair in zip(positional, [*missing, *arguments.defaults], strict=True)
    ]
    shown = shown[1:] if bound else shown
    if arguments.vararg:
        shown.append("*" + _parameter(arguments.vararg, None))
    elif arguments.kwonlyargs:
        shown.append("*")
    pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    shown += [_parameter(*pair) for pair in pairs]
    if arguments.kwarg:
        shown.append("**" + _parameter(arguments.kwarg, None))
    return shown


def _parameter(argument: ast.arg, default: ast.expr | None) -> str:
    annotation = f": {_type(argument.annotation)}" if argument.annotation else ""
    if default is None:
        return argument.arg + annotation
    equals = " = " if annotation else "="
    return argument.arg + annotation + equals + ast.unparse(default)


def _type(annotation: ast.expr) -> str:
    """An annotation, without the quotes of a name that comes later."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return annotation.value
    return ast.unparse(annotation)


def fields(node: ast.ClassDef) -> list[str]:
    """Parameters of a dataclass or named tuple."""
    shown = []
    for field in node.body:
        if not isinstance(field, ast.AnnAssign) or "ClassVar" in ast.unparse(field.annotation):
            continue
        annotation = ast.unparse(field.annotation)
        if annotation == "KW_ONLY":
            shown.append("*")
            continue
        default = "" if field.value is None else f" = {_default(field.value)}"
        shown.append(f"{ast.unparse(field.target)}: {annotation}{default}")
    return shown


def _default(value: ast.expr) -> str:
    is_field = isinstance(value, ast.Call) and ast.unparse(value.func) == "field"
    for keyword in value.keywords if is_field else ():
        if keyword.arg == "default_factory":
            made = keyword.value
            is_lambda = isinstance(made, ast.Lambda)
            return ast.unparse(made.body if is_lambda else made) + ("" if is_lambda else "()")
    return ast.unparse(value)


def signature(name: str, shown: list[str], returns: ast.expr | None = None) -> str:
    """A call on one line, or with a line for each parameter."""
    arrow = f" -> {_type(returns)}" if returns is not None else ""
    line = f"{name}({', '.join(shown)}){arrow}"
    if len(line) > WIDTH:
        line = f"{name}(\n" + "".join(f"    {part},\n" for part in shown) + f"){arrow}"
    return f"```text\n{line}\n```"


def markdown(docstring: str | None) -> str:
    """A docstring in Google's style as Markdown."""
    sections: list[tuple[str, list[str]]] = [("", [])]
    for line in inspect.cleandoc(docstring or "").splitlines():
        found = SECTION.match(line)
        if found:
            sections.append((found[1], []))
            continue
        if sections[-1][0] and line and not line.startswith(" "):
            sections.append(("", []))  # text behind a section
        sections[-1][1].append(line)
    blocks = (_section(title, "\n".join(lines).strip("\n")) for title, lines in sections)
    return "\n\n".join(filter(None, blocks))


def _inline(text: str) -> str:
    text = ROLE.sub(lambda m: f"`{m[1].removeprefix('~')}`", text).replace("``", "`")
    # A literal block of a docstring follows two colons.
    text = re.sub(r"::\n\n((?:    .*\n?|\n)+)", lambda m: f":\n\n{_fenced(m[1])}\n\n", text)
    return text.strip("\n")


def _fenced(code: str) -> str:
    return f"```text\n{textwrap.dedent(code).strip()}\n```"


def _section(title: str, body: str) -> str:
    if not title:
        return _inline(body)
    body = textwrap.dedent(body)
    if title == "Example":
        lines = (re.sub(r"\s+# doctest:.*$", "", line) for line in body.splitlines())
        return f"*{title}*\n\n" + _fenced("\n".join(lines))
    if title == "Returns":
        return f"*{title}*: {_inline(body)}"
    items = [_item(line) for line in body.splitlines()]
    return f"*{title}*\n\n" + _inline("\n".join(items))


def _item(line: str) -> str:
    if line.startswith(" "):
        return f"  {line.strip()}"  # goes on with the item above
    return ITEM.sub(r"- `\1`: \2", line) if ITEM.match(line) else f"- {line}"


def described(name: str, value: Any, module: ModuleType) -> Iterator[str]:
    """The parts of one entry."""
    yield f"### {name}"
    if inspect.ismodule(value):
        yield f"A module: [`{value.__name__}`](#{value.__name__.replace('.', '')})."
    elif inspect.isclass(value):
        yield from _class(name, value)
    elif inspect.isfunction(value) and value.__module__.startswith(MODULES[0]):
        node = definition(value)
        yield signature(name, parameters(node.args, bound=False), node.returns)
        yield markdown(value.__doc__)
    else:
        yield markdown(_comment_of(name, module))


def _class(name: str, value: type) -> Iterator[str]:
    node = definition(value)
    bases = ", ".join(base.__name__ for base in value.__bases__ if base is not object)
    methods = {m.name: m for m in node.body if isinstance(m, ast.FunctionDef)}
    init = methods.get("__init__")
    text = markdown(value.__doc__)
    if issubclass(value, Exception):
        yield f"An exception, also `{bases.replace(', ', '`, `')}`. {text}"
        return
    # What only the library makes says so in place of a signature.
    made_elsewhere = init is not None and (ast.get_docstring(init) or "").startswith("Made by")
    if init is not None and not made_elsewhere:
        yield signature(name, parameters(init.args, bound=True))
    elif fields(node):
        yield signature(name, fields(node))
    yield text
    if init is not None:
        yield markdown(ast.get_docstring(init))
    for method in methods.values():
        docstring = ast.get_docstring(method)
        if (
            docstring is None
            or docstring.startswith("For JAX")
            or (method.name.startswith("_") and method.name != "__call__")
        ):
            continue
        decorators = [ast.unparse(decorator) for decorator in method.decorator_list]
        if "property" in decorators:
            returns = f": {_type(method.returns)}" if method.returns else ""
            yield f"```text\n{name}.{method.name}{returns}\n```"
        else:
            shown = parameters(method.args, bound=True)
            called = name if method.name == "__call__" else f"{name}.{method.name}"
            yield signature(called, shown, method.returns)
        yield markdown(docstring)


def _comment_of(name: str, module: ModuleType) -> str | None:
    """The string that stands below an assignment, in the module or where it imports the name."""
    tree = ast.parse(inspect.getsource(module))
    for statement, below in zip(tree.body, tree.body[1:], strict=False):
        if (
            isinstance(statement, ast.Assign)
            and ast.unparse(statement.targets[0]) == name
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
        ):
            return str(below.value.value)
    for statement in tree.body:
        is_from = isinstance(statement, ast.ImportFrom) and statement.module
        if is_from and any(alias.name == name for alias in statement.names):
            return _comment_of(name, importlib.import_module(statement.module or ""))
    return None


def render() -> str:
    """The whole page."""
    parts = [HEAD.strip()]
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        parts += [f"## {module_name}", markdown(module.__doc__)]
        for name in public_names(module):
            parts += described(name, getattr(module, name), module)
    return "\n\n".join(filter(None, parts)) + "\n"


def main() -> None:
    """Writes the page, or checks it."""
    page = render()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(page)
    elif not PAGE.exists() or PAGE.read_text() != page:
        sys.exit("docs/reference.md is not up to date; run python tools/reference.py.")


if __name__ == "__main__":
    main()
