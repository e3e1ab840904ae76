import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from course.views import esm
from course.views.labels import number, tick_texts

ENTRIES = sorted(p.name for p in esm.HERE.glob("*.js") if "export default" in p.read_text())
VALUES = [(v, unit) for unit in ("s", "B", "share") for v in (0.5, 1, 999, 9.996e-4, 1.2345e-5, 12345.678, 4194304)]
TICKS = [
    ([0, 1, 2, 3, 4], ""),
    ([3, 3.5, 4, 4.5], "slots"),
    ([0, 0.0005, 0.001], "s"),
    ([0, 500_000, 1_000_000, 1_500_000], "B"),
    ([0, 0.25, 0.5], "share"),
    ([-0.2, -0.1, 0.0, 0.1], ""),
    ([1e3], "B"),
    ([3e-5], "s"),
    ([1500, 2000], ""),
]


@pytest.mark.skipif(shutil.which("node") is None, reason="Node is not installed; the browser tests run the same code")
def test_pure_functions_of_the_pictures():
    numbers = [{"value": v, "unit": unit, "text": number(v, unit)} for v, unit in VALUES]
    ticks = [{"values": values, "unit": unit, "texts": tick_texts(values, unit)} for values, unit in TICKS]
    environment = {**os.environ, "MINIPAR_JS": esm.HERE.as_uri()}
    environment |= {"MINIPAR_NUMBERS": json.dumps(numbers), "MINIPAR_TICKS": json.dumps(ticks)}
    line = ["node", "--test", str(Path(__file__).with_name("pure.test.mjs"))]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout[-4000:]


def test_every_script_that_draws_is_used_by_a_view_and_every_view_has_one():
    used = {name for path in esm.HERE.parent.glob("*.py") for name in re.findall(r'bundle\("([\w-]+\.js)"\)', path.read_text())}
    assert sorted(used) == ENTRIES


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
