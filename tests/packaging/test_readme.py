"""What README.md and CONTRIBUTING.md tell a reader to type or to open is there."""

import re
from pathlib import Path

import pytest

from course.cli import parser

ROOT = Path(__file__).parents[2]
TEXTS = {name: (ROOT / name).read_text() for name in ("README.md", "CONTRIBUTING.md")}
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
EVERYWHERE = pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())


def code(text: str) -> str:
    """All that is set as code: fenced blocks and `spans`."""
    return "\n".join(re.findall(r"```.*?```|`[^`\n]+`", text, re.DOTALL))


@EVERYWHERE
def test_make_targets_exist(text: str) -> None:
    named = set(re.findall(r"\bmake ([a-z-]+)", code(text)))
    assert named <= TARGETS
    assert named


def test_the_two_commands_are_in_the_readme() -> None:
    assert {"make lab", "make test"} <= set(re.findall(r"make [a-z]+", code(TEXTS["README.md"])))


@EVERYWHERE
def test_minipar_commands_exist(text: str) -> None:
    offered = set(re.findall(r"^    ([a-z]+)  ", parser().format_help(), re.MULTILINE))
    named = set(re.findall(r"\bminipar ([a-z]+)\b", code(text)))
    assert named <= offered
    assert named


@EVERYWHERE
def test_linked_files_and_named_paths_exist(text: str) -> None:
    linked = [target for target in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in target]
    named = re.findall(r"`((?:course|minipar|notebooks|tests|\.ci)/[\w./-]*)`", text)
    paths = [target for target in [*linked, *named] if "NN-name" not in target]  # that one is the reader's to choose
    assert [target for target in paths if not (ROOT / target).exists()] == []
