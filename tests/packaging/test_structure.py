"""The one rule of structure: notebooks -> course -> minipar -> torch, and nothing points back."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MINIPAR = sorted((ROOT / "minipar").rglob("*.py"))
PACKAGES = [*MINIPAR, *sorted((ROOT / "course").rglob("*.py"))]
TOP = {"course", "minipar", "notebooks", "tests", ".ci", ".gitignore", "pyproject.toml", "Makefile", "constraints.txt"}
TOP |= {"environment.yml", "README.md", "CONTRIBUTING.md", "LICENSE"}
ALLOWED = {"torch", "numpy", "minipar"} | sys.stdlib_module_names
ALSO = {"minipar/train.py": {"tqdm"}}  # a progress bar for a person at a shell
MOVES_DATA = {"all_reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor", "all_to_all"}
MOVES_DATA |= {"all_to_all_single", "broadcast", "send", "recv", "isend", "irecv", "batch_isend_irecv", "all_gather_object"}


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports(path: Path) -> Iterator[str]:
    """The absolute modules that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def data_calls(path: Path) -> Iterator[str]:
    """Calls like ``dist.all_reduce(...)`` or ``torch.distributed.send(...)``."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MOVES_DATA:
            owner = ast.unparse(node.func.value)
            if owner in ("dist", "torch.distributed"):
                yield f"{named(path)}:{node.lineno}: {owner}.{node.func.attr}"


@pytest.mark.parametrize("path", MINIPAR, ids=named)
def test_minipar_imports_torch_and_the_standard_library_alone(path: Path) -> None:
    allowed = ALLOWED | ALSO.get(named(path), set())
    assert [name for name in imports(path) if name.split(".")[0] not in allowed] == []


@pytest.mark.parametrize("path", [p for p in MINIPAR if "comm" not in p.parts], ids=named)
def test_only_comm_moves_data_between_ranks(path: Path) -> None:
    calls = list(data_calls(path))
    names = [name for name in imports(path) if name.startswith("torch.distributed.") and name.split(".")[-1] in MOVES_DATA]
    assert calls + names == []


@pytest.mark.parametrize("path", PACKAGES, ids=named)
def test_a_file_is_short_enough_to_be_read(path: Path) -> None:
    length = path.read_text().count("\n")
    assert length < 300, f"{length} lines: one idea a file, on a few screens"


def tracked() -> list[str]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: what belongs to the repository is not known")
    return subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()


def test_the_top_level_holds_nothing_else() -> None:
    assert {name.split("/")[0] for name in tracked()} - TOP == set()


def test_nothing_is_left_for_later() -> None:
    marks = re.compile(r"(?<![\w+/])(TO" + r"DO|FIX" + r"ME|X{3})(?![\w+/])")  # as a word, not among the letters of a picture
    texts = [
        name
        for name in tracked()
        if name.endswith((".py", ".md", ".ipynb", ".js", ".sh", ".toml", ".yml")) and (ROOT / name).exists()
    ]
    assert [name for name in texts if marks.search((ROOT / name).read_text())] == []
