"""Other processes: real ones, for what threads cannot show (crashes, two hosts, memory of one's own)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

_DEADLINE = 120.0
_CALL = "import json, sys; from {module} import {function}; print(json.dumps({function}(*json.loads(sys.argv[1]))))"


def start_child(module: str, function: str, *arguments: Any, **environment: str) -> subprocess.Popen[str]:
    """Start ``module.function(*arguments)`` in another Python; arguments and result go as JSON.

    ``environment`` is added to ours: ``DIGEST_FAULT="content_building:kill:2"``.
    """
    code = _CALL.format(module=module, function=function)
    return subprocess.Popen(
        [sys.executable, "-c", code, json.dumps(arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, **environment},
    )


def result_of(child: subprocess.Popen[str]) -> Any:
    """Wait for a child and return what its function returned; its last words fail the test."""
    out, err = child.communicate(timeout=_DEADLINE)
    assert child.returncode == 0, f"the child ended with {child.returncode}:\n{err[-3000:]}"
    return json.loads(out.splitlines()[-1])


def end_of(child: subprocess.Popen[str]) -> int:
    """Wait for a child and return how it ended: minus the signal for one that was killed."""
    child.communicate(timeout=_DEADLINE)
    return child.returncode
