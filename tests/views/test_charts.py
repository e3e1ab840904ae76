import io
import json

import plotly.graph_objects as go
import pytest
from PIL import Image

from course.views.charts import PLOTLY, Curve, bars, lines


def memory():
    parts = {"weights": [4e6, 1e6], "gradients": [4e6, 1e6], "optimizer": [8e6, 2e6]}
    return bars(["dp", "zero-3"], parts, unit="B", title="memory per rank", stacked=True, limit=1e7)


def test_a_chart_is_plotly_a_picture_and_text_and_stays_small():
    data = memory()._repr_mimebundle_()
    assert list(data) == [PLOTLY, "image/png", "text/plain"]
    assert data[PLOTLY]["config"]["showSendToCloud"] is False
    assert "8 MB" in data["text/plain"]
    assert "optimizer (predicted)" in data["text/plain"]
    assert len(json.dumps(data)) < 60_000


def test_the_picture_fits_beside_the_list_of_files_on_a_page_of_1280_pixels():
    for chart in (memory(), lines([Curve("fit", [1, 2], [3, 4])], "MB", "s")):
        width, _ = Image.open(io.BytesIO(chart.png())).size
        assert width <= 858


def test_plotly_accepts_the_figures():
    for chart in (
        memory(),
        lines([Curve("fit", [1, 2], [3, 4]), Curve("measured", [1], [2], "measured", points=True)], "MB", "s", log="xy"),
    ):
        go.Figure({"data": chart.data, "layout": chart.layout})  # refuses a name that plotly does not know


def test_bars_need_a_value_for_each_group():
    with pytest.raises(ValueError, match="3 values for 2 groups"):
        bars(["a", "b"], {"weights": [1, 2, 3]})


def test_curves_say_how_they_were_come_by():
    chart = lines([Curve("ring", [1, 2], [0.5, 0.25], "measured", points=True), Curve("empty", [], [])], "MB", "time", y_unit="s")
    assert [trace["name"] for trace in chart.data] == ["ring (measured)", "empty (predicted)"]
    assert "500 ms" in str(chart.table())


def test_both_axes_are_named_below_whatever_the_title_says():
    chart = lines([Curve("ring", [1, 2], [0.5, 0.25])], "ranks", "speed", "one MLP")
    assert chart.layout["xaxis"]["title"]["text"] == chart.drawn.axes[0].get_xlabel() == "ranks"
    assert chart.layout["yaxis"]["title"]["text"] == chart.drawn.axes[0].get_ylabel() == "speed"
