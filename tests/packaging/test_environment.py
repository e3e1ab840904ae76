"""pip users and conda users get the same packages: names, bounds, and pins that fit them."""

import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from course.doctor import pins

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CONDA_NAMES = {"torch": "pytorch", "playwright": "playwright-python"}  # where conda-forge has another name than the index
CONDA_ONLY = {"pip", "make"}


def declared() -> list[Requirement]:
    project = PROJECT["project"]
    lines = [*project["dependencies"], *project["optional-dependencies"]["dev"], *PROJECT["build-system"]["requires"]]
    return [*map(Requirement, lines), Requirement(f"python{project['requires-python']}")]


def conda() -> list[Requirement]:
    entries = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    return [Requirement(entry) for entry in entries if isinstance(entry, str)]


def test_conda_has_the_names_and_bounds_of_pyproject() -> None:
    expected = {CONDA_NAMES.get(r.name, r.name): str(r.specifier) for r in declared()}
    assert {r.name: str(r.specifier) for r in conda() if r.name not in CONDA_ONLY} == expected


def test_conda_installs_minipar_itself() -> None:
    entries = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    assert {"pip": ["-e ."]} in entries


@pytest.mark.parametrize("requirement", [r for r in declared() if r.name != "python"], ids=lambda r: r.name)
def test_the_tested_version_lies_within_the_bounds(requirement: Requirement) -> None:
    tested = pins(ROOT / "constraints.txt")
    assert requirement.specifier.contains(tested[requirement.name])


def test_constraints_are_plain_pins() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.]+", line)] == []
    assert len({canonicalize_name(line.split("==")[0]) for line in lines}) == len(lines)


def test_everything_that_is_installed_along_is_pinned() -> None:
    pinned = {canonicalize_name(name) for name in pins(ROOT / "constraints.txt")}
    assert sorted(_closure("minipar", {"", "dev"}) - pinned - {"minipar"}) == []


def _closure(name: str, extras: set[str]) -> set[str]:
    """Every distribution that installing ``name`` brings along on this machine, canonical names, itself included."""
    seen: set[str] = set()
    todo = [(name, extras)]
    while todo:
        name, extras = todo.pop()
        key = canonicalize_name(name)
        if key in seen and extras <= {""}:
            continue
        seen.add(key)
        for line in importlib.metadata.requires(name) or []:
            requirement = Requirement(line)
            if requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in extras):
                todo.append((requirement.name, {"", *requirement.extras}))
    return seen
