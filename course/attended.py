"""Is somebody sitting in front of this notebook?

In continuous integration, under ``nbval``, ``nbconvert`` and ``minipar bake`` nobody can move a slider or press Run: labs and
predictions then do at once what they would do when asked, with their default values, and show a finished picture.
"""

from __future__ import annotations

import os

_FRONT_ENDS = ("JPY_SESSION_NAME", "VSCODE_PID", "VSCODE_CWD", "COLAB_RELEASE_TAG")  # set by a server with a browser before it


def attended() -> bool:
    """Whether widgets can be answered. ``MINIPAR_ATTENDED=0`` or ``1`` decides; else the front end's own marks do."""
    said = os.environ.get("MINIPAR_ATTENDED")
    if said is not None:
        return said != "0"
    return any(name in os.environ for name in _FRONT_ENDS)
