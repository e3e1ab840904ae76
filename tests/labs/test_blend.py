"""The blend lab predicts bytes, memory and time of a step, and the ranks find the same."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest
from PIL import Image

from course import labs
from course.labs import pool
from course.labs.base import Settings
from course.labs.lab_blend import BlendLab, predicted
from course.views.mesh_view import MeshView
from course.views.stacks import StacksView


@pytest.fixture(scope="module", autouse=True)
def nobody_there() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINIPAR_ATTENDED", "0")
        yield
    pool.close()


def settings(**values: object) -> Settings:
    """The lab's first values, some replaced."""
    lab = BlendLab.__new__(BlendLab)
    return Settings(**{name: control.value for name, control in lab.controls().items()} | values)


def test_a_blend_is_a_finished_picture_whose_ranks_find_what_was_predicted() -> None:
    lab = labs.blend(ranks=4, dp=1, pp=2, tp=2, microbatches=4, cap=4.0)
    counted = {name: row for name, row in lab.figures.found.items() if row[2] == "counted"}
    assert {name for name in counted if name.startswith("sent")} == {"sent over tp", "sent over pp"}
    for name, (value, unit, _) in counted.items():
        rel = 0.05 if name == "fullest rank" else 1e-12
        assert lab.figures.predicted[name] == (pytest.approx(value, rel=rel), unit)
    for name in ("step", "tokens per second"):
        value, unit, how = lab.figures.found[name]
        assert lab.figures.predicted[name] == (pytest.approx(value, rel=0.05), unit)
        assert how == "paced"
    picture = Image.open(io.BytesIO(lab.png()))
    assert picture.width > 900
    assert len(lab.png()) < 100_000
    data, _ = lab._repr_mimebundle_()
    assert set(data) == {"image/png", "text/plain"}
    assert "Paced as two nodes" in data["text/plain"]


def test_what_does_not_fit_under_the_cap_is_predicted_and_not_run() -> None:
    lab = labs.blend(ranks=4, dp=4, tp=1, microbatches=1)
    assert not lab.figures.found
    most = max(memory.total for memory in predicted(settings(ranks=4, dp=4, tp=1, microbatches=1)).memory())
    assert most > 2 * 3e6
    assert lab.said == f"Not run: the fullest rank needs {most / 1e6:.1f} MB (predicted), and the cap is 3.0 MB."


@pytest.mark.parametrize(("values", "says"), [
    ({"dp": 2, "tp": 4}, "dp 2 x pp 1 x cp 1 x tp 4 = 8 ranks, and there are 4."),
    ({"dp": 4, "tp": 1, "microbatches": 8}, "16 rows do not reach for dp 4 x 8 microbatches"),
    ({"ep": 2}, "ep 2 splits experts, and this model has none"),
    ({"dp": 1, "pp": 4, "tp": 1, "schedule": "interleaved"}, "too few for 8 stages"),
])  # fmt: skip
def test_what_cannot_run_is_refused_with_the_reason(values: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says.replace("+", r"\+")):
        labs.blend(**values)


def test_a_slow_link_between_the_nodes_turns_the_better_split_into_the_worse() -> None:
    rows, layers = {"dp": 2, "tp": 2, "pp": 1}, {"dp": 1, "tp": 2, "pp": 2}
    fast = [predicted(settings(**sizes)).seconds for sizes in (rows, layers)]
    slow = [predicted(settings(**sizes, link="Ethernet 10 Gb/s")).seconds for sizes in (rows, layers)]
    assert fast[0] < fast[1]
    assert slow[0] > slow[1]


def test_a_slow_rank_holds_up_those_that_wait_for_it() -> None:
    even, held_up = (predicted(settings(slow=slow)) for slow in (1.0, 2.0))
    assert 1.9 < held_up.seconds / even.seconds <= 2.0
    assert held_up.bubble > even.bubble


def test_the_mesh_view_shows_every_line_of_every_axis() -> None:
    view = MeshView()
    assert view.is_empty()
    view.show(4, {"pp": [(0, 2), (1, 3)], "tp": [(0, 1), (2, 3)]}, {"pp": "layers", "tp": "matrices"}, ["a", "b", "c", "d"])
    header, _ = view._content()
    assert [panel["lines"] for panel in header["panels"]] == [[0, 1, 0, 1], [0, 0, 1, 1]]
    assert [row[1:] for row in view.table().rows] == [("a", "a", "a"), ("b", "a", "b"), ("a", "b", "c"), ("b", "b", "d")]
    assert Image.open(io.BytesIO(view.png())).width > 900


def test_the_stacks_view_keeps_predicted_beside_counted_under_the_limit() -> None:
    view = StacksView("memory")
    assert view.is_empty()
    view.show(["rank 0", "rank 1"], {"weights": [1e6, 2e6], "state": [1e6, 0]}, None, limit=3e6)
    view.show(counted={"weights": [1e6, 2e6], "state": [2e6, 0]})
    header, _ = view._content()
    assert [bar["source"] for bar in header["bars"]] == ["predicted", "counted"]
    assert header["totals"] == [["2 MB", "2 MB"], ["3 MB", "2 MB"]]
    assert header["limitText"] == "cap 3 MB"
    assert ("rank 0", "counted", "1 MB", "2 MB", "3 MB") in view.table().rows
    view.show(["rank 0"], {"weights": [1.0]}, None)
    assert [bar["source"] for bar in view._content()[0]["bars"]] == ["predicted"]
