"""Who may see whom: one table for C++ includes and one for Python imports."""

import ast
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CPP = ROOT / "cpp"
PACKAGE = ROOT / "dynemb_jax"

# A layer may include itself and the layers named here, nothing else.
CPP_LAYERS = {
    "core": set(),
    "memory": {"core"},
    "table": {"memory", "core"},
    "cpu": {"table", "memory", "core"},
    "cuda": {"table", "memory", "core"},
    "ffi": {"table", "core"},
    "python": {"ffi", "table", "cpu", "cuda", "memory", "core"},
}
# How XLA calls us is the business of ffi; python only registers the handlers.
XLA_LAYERS = {"ffi", "python"}

# A module (or package) may import itself and the modules named here, nothing else of ours.
PYTHON_LAYERS = {
    "errors": set(),
    "optimizers": {"errors"},
    "initializers": {"errors"},
    "eviction": {"errors"},
    "admission": {"errors"},
    "config": {"errors", "optimizers", "initializers", "eviction", "admission"},
    "keys": {"errors"},
    "inputs": {"errors", "keys"},
    "feed": {"errors", "keys", "inputs"},
    "_registration": {"_native", "_native_cuda"},
    "_primitives": {"errors", "keys", "inputs", "_native", "_registration"},
    "_autodiff": {"errors", "keys", "inputs", "_primitives"},
    "group": {
        "errors",
        "config",
        "optimizers",
        "initializers",
        "eviction",
        "admission",
        "_registration",
    },
    "embeddings": {"errors", "config", "group"},
    "lookups": {
        "errors",
        "eviction",
        "keys",
        "inputs",
        "_primitives",
        "_autodiff",
        "group",
        "embeddings",
    },
    "row_transforms": {"config", "optimizers", "_primitives"},
    "updates": {"errors", "_primitives", "group", "embeddings", "row_transforms"},
    "flax": {"errors", "embeddings", "lookups", "updates"},
}
LEAVES = {"errors", "optimizers", "initializers", "eviction", "admission", "config"}
JAX_INTERNALS = {"_primitives/define.py"}
# Optional libraries, and the only package that imports each; nothing of ours imports that one.
OUTERMOST = {"flax": "flax"}
ORACLE_LIBRARIES = {"numpy", "scipy"}

SOURCES = sorted(path for path in CPP.rglob("*") if path.suffix in {".h", ".cc", ".cu", ".cuh"})
MODULES = sorted(PACKAGE.rglob("*.py"))


def included(path: pathlib.Path) -> set[str]:
    """Returns what is included in quotes; <memory> is the standard's, not ours."""
    text = path.read_text()
    return set(re.findall(r'^\s*#\s*include\s*"([^"]+)"', text, re.MULTILINE))


def imported(path: pathlib.Path) -> set[str]:
    """Returns absolute dotted names, also of the names in `from a import b` (a.b)."""
    package = ["dynemb_jax", *path.relative_to(PACKAGE).parent.parts] if path in MODULES else []
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            names |= {f"{stem}.{alias.name}" for alias in node.names}
    return names


def own_layers(path: pathlib.Path) -> set[str]:
    """Returns the first component below dynemb_jax of each import of ours."""
    known = {p.stem if p.suffix == ".py" else p.name for p in PACKAGE.iterdir()}
    ours = (name.split(".") for name in imported(path) if name.split(".")[0] == "dynemb_jax")
    return {parts[1] for parts in ours if len(parts) > 1 and parts[1] in known}


def layer(path: pathlib.Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def ids(paths: list[pathlib.Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


@pytest.mark.parametrize("path", SOURCES, ids=ids(SOURCES))
def test_cpp_file_includes_only_the_layers_below(path: pathlib.Path):
    home = path.relative_to(CPP).parts[0]
    allowed = CPP_LAYERS[home] | {home}

    seen = {name.split("/")[0] for name in included(path)} & set(CPP_LAYERS)

    assert seen <= allowed, f"cpp/{home} may not include {sorted(seen - allowed)}"


@pytest.mark.parametrize("path", SOURCES, ids=ids(SOURCES))
def test_xla_is_seen_by_the_boundary_only(path: pathlib.Path):
    home = path.relative_to(CPP).parts[0]

    xla = {name for name in included(path) if name.startswith("xla/")}

    assert not xla or home in XLA_LAYERS


@pytest.mark.parametrize("path", MODULES, ids=ids(MODULES))
def test_module_imports_only_the_layers_below(path: pathlib.Path):
    home = layer(path)
    if home not in PYTHON_LAYERS:
        pytest.skip("top of the library: may import every layer")

    seen = own_layers(path) - {home}

    assert seen <= PYTHON_LAYERS[home], sorted(seen - PYTHON_LAYERS[home])


@pytest.mark.parametrize("path", MODULES, ids=ids(MODULES))
def test_jax_internals_are_imported_in_one_file(path: pathlib.Path):
    internal = {name for name in imported(path) if name.startswith("jax._src")}

    assert not internal or str(path.relative_to(PACKAGE)) in JAX_INTERNALS


@pytest.mark.parametrize("path", MODULES, ids=ids(MODULES))
def test_optional_libraries_stay_in_the_outermost_layers(path: pathlib.Path):
    for library, home in OUTERMOST.items():
        if layer(path) != home:
            assert library not in {name.split(".")[0] for name in imported(path)}
            assert home not in own_layers(path)


def test_importing_the_library_imports_no_optional_one():
    script = "import sys, dynemb_jax; assert not set(sys.argv[1:]) & set(sys.modules), sys.argv"

    done = subprocess.run(
        [sys.executable, "-c", script, *OUTERMOST], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", MODULES, ids=ids(MODULES))
def test_library_never_imports_tests(path: pathlib.Path):
    assert "tests" not in {name.split(".")[0] for name in imported(path)}


@pytest.mark.parametrize("name", sorted(LEAVES))
def test_leaf_traces_nothing(name: str):
    # Descriptors are read at construction time; what runs under jit lives in the layers above.
    allowed = ("jax.numpy.", "jax.typing.", "jax.Array", "jax.tree_util.")
    sources = [path for path in MODULES if layer(path) == name]
    jax_names = {n for path in sources for n in imported(path) if n.split(".")[0] == "jax"}

    tracing = {n for n in jax_names if n not in {"jax", "jax.numpy"} and not n.startswith(allowed)}

    assert sources
    assert not tracing


def test_oracle_shares_no_code_with_the_library():
    files = (ROOT / "tests" / "oracle").rglob("*.py")
    oracle = [path for path in files if not path.name.startswith("test_")]

    outside = {
        name
        for path in oracle
        for name in imported(path)
        if not name.startswith("tests.oracle")
        and name.split(".")[0] not in sys.stdlib_module_names | ORACLE_LIBRARIES
    }

    assert oracle
    assert not outside
