"""``minipar lab`` as it is typed: it prints a URL with a token where no browser can open, and serves lesson 0 there."""

import os
import re
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from tests.browser.server import await_answer
from tests.ports import free_port


def test_lab_prints_a_url_that_opens_lesson_0() -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY", "JUPYTER_TOKEN")}
    line = [sys.executable, "-m", "course.cli", "lab", f"--ServerApp.port={free_port()}"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            assert "No browser can be opened from here" in process.stdout.readline()
            said = next(found for text in process.stdout if (found := re.search(r"http://127\.0\.0\.1:\d+(/\S*)\?token=\w+", text)))
            assert re.fullmatch(r"/lab/tree/notebooks/00-[\w-]+\.ipynb", said[1])
            assert "jupyter-config-data" in await_answer(said[0], process).decode()
            with pytest.raises(urllib.error.HTTPError, match="403"):
                urllib.request.urlopen(said[0].split("/lab")[0] + "/api/contents")
        finally:
            process.terminate()
            process.communicate(timeout=60)
