import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from course.views import esm
from course.views.labels import number

ENTRIES = sorted(p.name for p in esm.HERE.glob("*.js") if "export default" in p.read_text())
VALUES = [(v, unit) for unit in ("s", "B", "share") for v in (0.5, 1, 999, 9.996e-4, 1.2345e-5, 12345.678, 4194304)]


@pytest.mark.skipif(shutil.which("node") is None, reason="Node is not installed; the browser tests run the same code")
def test_pure_functions_of_the_pictures():
    numbers = [{"value": v, "unit": unit, "text": number(v, unit)} for v, unit in VALUES]
    environment = {**os.environ, "MINIPAR_JS": esm.HERE.as_uri(), "MINIPAR_NUMBERS": json.dumps(numbers)}
    line = ["node", "--test", str(Path(__file__).with_name("pure.test.mjs"))]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout[-4000:]


def test_every_picture_has_an_entry():
    assert ENTRIES == ["curves.js", "experts.js", "masks.js", "rank-states.js", "schedule.js", "timeline.js"]


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_bundle_is_one_module_whose_names_are_defined_once(entry):
    text = esm.bundle(entry)
    assert not re.search(r"^import ", text, re.MULTILINE)
    assert len(re.findall(r"^export ", text, re.MULTILINE)) == 1  # the default
    names = re.findall(r"^(?:async )?(?:function|class|const|let) (\w+)", text, re.MULTILINE)
    assert len(names) == len(set(names))


@pytest.mark.parametrize("path", sorted(esm.HERE.iterdir()), ids=lambda p: p.name)
def test_nothing_is_fetched_from_elsewhere(path):
    assert not re.search(r"https?://|fetch\(|import\(", path.read_text())
