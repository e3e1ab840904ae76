"""Run notebooks and store them finished: a PNG and a text table for each picture, no widget state, nothing of this machine.

A baked notebook reads as a finished page on GitHub, and nbval can compare it with a later run: what varies from run to run
(pictures; anything that says *measured* or *paced*) is marked, what is counted or predicted is compared.
"""

from __future__ import annotations

import ast
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

LIMIT = 300_000  # bytes of a stored notebook
CELL_TIMEOUT = 120  # seconds
IGNORE = "nbval-ignore-output"
WIDGET = "application/vnd.jupyter.widget-view+json"
BULKY = 20_000  # characters of HTML or JSON that a picture beside it makes superfluous
VARIES = re.compile(r"\b(measured|paced)\b")
ASKS = re.compile(r"^predict\(", re.MULTILINE)
KERNEL = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}


class BakeError(Exception):
    """A notebook cannot be stored as it is."""


def bake(paths: Iterable[str | Path], execute: bool = True, limit: int = LIMIT) -> list[Path]:
    """Run each notebook (or take it as it was run, with ``execute=False``) and store it in place, finished.

    Raises ``BakeError``, and leaves the file alone, when a cell fails or the result is larger than ``limit`` bytes.
    """
    return [bake_one(Path(path), execute, limit) for path in paths]


def bake_one(path: Path, execute: bool = True, limit: int = LIMIT) -> Path:
    notebook = nbformat.read(path, as_version=4)
    if execute:
        run(notebook, path.parent)
    finish(notebook, path.parent)
    text = nbformat.writes(notebook) + "\n"
    if len(text.encode()) > limit:
        raise BakeError(f"{path.name} would take {len(text.encode()):,} bytes, {limit:,} are allowed. {_largest(notebook)}")
    path.write_text(text, encoding="utf-8")
    return path


def run(notebook: NotebookNode, folder: Path) -> None:
    """Execute all cells in a kernel of their own; displayed widgets become what they show at the end of their cell."""
    name = notebook.metadata.get("kernelspec", {}).get("name", KERNEL["name"])
    baker = _Baker(notebook, timeout=CELL_TIMEOUT, kernel_name=name, resources={"metadata": {"path": str(folder)}})
    baker.store_widget_state = False
    try:
        baker.execute(env=_environment())
    except Exception as error:
        raise BakeError(f"a cell failed: {error}") from error


def _environment() -> dict[str, str]:
    return {**os.environ, "MINIPAR_ATTENDED": "0", "COLUMNS": "100", "NO_COLOR": "1"}  # guesses are taken, nobody is asked


class _Baker(NotebookClient):
    async def async_execute_cell(self, cell: NotebookNode, *args: Any, **kwargs: Any) -> NotebookNode:
        done = await super().async_execute_cell(cell, *args, **kwargs)
        shown = [o for o in cell.get("outputs", []) if WIDGET in o.get("data", {})]
        if shown:
            stills = await self._stills([o["data"][WIDGET]["model_id"] for o in shown])
            cell["outputs"] = [new for output in cell["outputs"] for new in _replaced(output, stills)]
            _tag(cell)
        return done

    async def _stills(self, ids: list[str]) -> dict[str, list[dict[str, str]]]:
        ask = f"__import__('course.views.mime', fromlist=['stills']).stills({ids!r})"
        client: Any = self.kc
        reply = await client.execute("", silent=True, store_history=False, user_expressions={"stills": ask}, reply=True)
        answer = reply["content"]["user_expressions"]["stills"]
        if answer["status"] != "ok":
            raise BakeError(f"a picture could not be finished: {answer['ename']}: {answer['evalue']}")
        return dict(json.loads(ast.literal_eval(answer["data"]["text/plain"])))


def _replaced(output: NotebookNode, stills: dict[str, list[dict[str, str]]]) -> list[NotebookNode]:
    """The widget's finished parts in its place; the output itself where the widget is gone, or shows no more than its text."""
    parts = stills.get(output.get("data", {}).get(WIDGET, {}).get("model_id", ""), [])
    return [NotebookNode(output_type="display_data", data=NotebookNode(p), metadata=NotebookNode()) for p in parts] or [output]


def _tag(cell: NotebookNode) -> None:
    tags = cell.metadata.setdefault("tags", [])
    if IGNORE not in tags:
        tags.append(IGNORE)


# ---- storing


def finish(notebook: NotebookNode, folder: Path) -> None:
    """Strip, clean and mark an executed notebook, in place. Doing it twice changes nothing."""
    notebook.metadata = NotebookNode(kernelspec=NotebookNode(KERNEL), language_info=NotebookNode(name="python"))
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    clean = _cleaner(folder)
    for count, cell in enumerate(code, start=1):
        cell.execution_count = count
        cell.outputs = _joined([o for o in cell.outputs if o.get("data", {None: None}) != {}])
        cleaned = [_finish_output(output, count, clean) for output in cell.outputs]
        cell.outputs = [o for o in cell.outputs if o.output_type not in ("display_data", "execute_result") or o.data]
        if any(cleaned) or _varies(cell):
            _tag(cell)
        if ASKS.search(cell.source):  # it holds the answer: folded, until the reader unfolds it
            cell.metadata["jupyter"] = {**cell.metadata.get("jupyter", {}), "source_hidden": True}
    for cell in notebook.cells:
        cell.metadata = NotebookNode({k: v for k, v in cell.metadata.items() if k in ("tags", "jupyter", "slideshow")})


def _finish_output(output: NotebookNode, count: int, clean: Callable[[str], str]) -> bool:
    """Strip and clean one output; whether something of this machine was taken out of its text."""
    if output.output_type == "execute_result":
        output.execution_count = count
    if "metadata" in output:
        output.metadata = NotebookNode({k: v for k, v in output.metadata.items() if k == "image/png"})
    data = output.get("data", {})
    data.pop(WIDGET, None)
    if "image/png" in data:
        for mime in [m for m, value in data.items() if m not in ("image/png", "text/plain") and len(json.dumps(value)) > BULKY]:
            del data[mime]
    if output.output_type == "stream":
        output.text = _last_lines(output.text)
    before = json.dumps(output)
    for place, key in [(output, "text"), (data, "text/plain"), (data, "text/html"), (data, "text/markdown")]:
        if key in place:
            place[key] = clean(place[key])
    if "traceback" in output:
        output.traceback = [clean(line) for line in output.traceback]
    return json.dumps(output) != before


def _joined(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Neighbouring pieces of one stream as one."""
    joined: list[NotebookNode] = []
    for output in outputs:
        last = joined[-1] if joined else None
        if last and output.output_type == last.output_type == "stream" and output.name == last.name:
            last.text += output.text
        else:
            joined.append(output)
    return joined


def _last_lines(text: str) -> str:
    """What a terminal shows in the end: a carriage return starts the line anew, as progress bars do."""
    return "\n".join(line.rstrip("\r").rsplit("\r", 1)[-1] for line in text.split("\n"))


def _cleaner(folder: Path) -> Callable[[str], str]:
    """A function that takes paths of this machine and addresses of objects out of a text."""
    folders = {str(folder.resolve()): "notebooks", str(Path(__file__).resolve().parents[1]): "minipar", sys.prefix: "python"}
    folders |= {sys.base_prefix: "python", tempfile.gettempdir(): "tmp", str(Path.home()): "~"}
    ordered = sorted((f for f in folders if len(f) > 1), key=len, reverse=True)
    pattern = re.compile("|".join(re.escape(f) + r"(?=[/\\])" for f in ordered))

    def clean(text: str) -> str:
        text = re.sub(r"\S{0,200}ipykernel_\d+[/\\]\d+\.py", "<cell>", text) if "ipykernel_" in text else text
        return re.sub(r"\b0x[0-9a-f]{6,}\b", "0x...", pattern.sub(lambda m: folders[m.group()], text))

    return clean


def _varies(cell: NotebookNode) -> bool:
    """Whether an output shows a picture, or a number that a clock gave."""
    texts = [o.get("text", "") + o.get("data", {}).get("text/plain", "") for o in cell.outputs]
    return any("image/png" in o.get("data", {}) for o in cell.outputs) or any(VARIES.search(text) for text in texts)


def _largest(notebook: NotebookNode) -> str:
    sizes = [(len(json.dumps(cell.get("outputs", []))), i) for i, cell in enumerate(notebook.cells)]
    return "The largest outputs: " + ", ".join(f"cell {i} ({size:,})" for size, i in sorted(sizes, reverse=True)[:3])
