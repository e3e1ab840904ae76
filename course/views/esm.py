"""One ES module out of several small ones: anywidget hands the browser a single text, so relative imports are joined here.

The files under ``js/`` stay plain modules that Node can import and test. Their top-level names must differ.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent / "js"
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./([\w-]+\.js)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const|let)\b)", re.MULTILINE)


@cache
def bundle(entry: str) -> str:
    """The text of ``js/<entry>`` with every module it imports, each once, before its importers."""
    parts: list[str] = []
    _collect(entry, parts, set())
    return "\n".join(parts)


def _collect(name: str, parts: list[str], seen: set[str]) -> None:
    if name in seen:
        return
    seen.add(name)
    text = (HERE / name).read_text(encoding="utf-8")
    for needed in _IMPORT.findall(text):
        _collect(needed, parts, seen)
    parts.append(_EXPORT.sub("", _IMPORT.sub("", text)))
