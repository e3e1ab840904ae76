"""Take the README's picture from the product itself: ``python -m tests.browser.picture``."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from course.browser import find_chromium
from course.lab import root
from tests.browser.conftest import FLAGS
from tests.browser.labpage import LabPage
from tests.browser.server import Server, serve

PICTURE = root() / "notebooks" / "images" / "lab.png"
SOURCE = "from course import labs\nlabs.data_parallel()"
WINDOW = {"width": 1180, "height": 1500}
COLOURS = 128


def take(server: Server, chromium: str) -> bytes:
    """The lab of the data-parallel lesson, run once by its Run button, as a PNG."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        page = LabPage(browser.new_page(viewport=WINDOW, device_scale_factor=1.5), server, "picture")
        page.open(server.write("picture.ipynb", SOURCE))
        page.run_all()
        page.wait_idle()
        page.button("Run").click()
        page.page.locator("[role=status]", has_text="Paced as").wait_for()
        page.page.wait_for_timeout(1000)  # the last frame
        output, view = (page.page.locator(name).first.bounding_box() for name in (".jp-OutputArea-output", ".mp-timeline"))
        assert output
        assert view
        bottom = view["y"] + view["height"]  # the table below it is left out
        picture = page.page.screenshot(
            clip={"x": output["x"], "y": output["y"], "width": output["width"], "height": bottom - output["y"]}
        )
        page.close()
        browser.close()
    return picture


def main() -> None:
    chromium = find_chromium()
    assert chromium, "the picture needs a Chromium"
    with tempfile.TemporaryDirectory() as home, serve(Path(home)) as server:
        picture = Image.open(io.BytesIO(take(server, chromium))).convert("RGB").quantize(COLOURS)
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    picture.save(PICTURE, optimize=True)
    print(f"{PICTURE}: {PICTURE.stat().st_size:,} bytes, {picture.width} x {picture.height}")


if __name__ == "__main__":
    main()
