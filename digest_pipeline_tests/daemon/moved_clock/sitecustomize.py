"""Python imports this first in every process of a site whose clock is moved; see ``daemon/clock.py``.

``date``, ``time()`` and their kind follow the file; ``sleep``, monotonic clocks and gRPC, whose C core
compares deadlines with the machine's clock, stay with the machine.
"""

import importlib
import os
import sys
import threading
import time
import types
from pathlib import Path


def follow(file: Path) -> None:
    import time_machine

    offset = float(file.read_text())
    moved = time_machine.travel(time.time() + offset, tick=True).start()
    machine = types.SimpleNamespace(**{**vars(time), "time": time_machine.escape_hatch.time.time})
    for name in ("_channel", "_common", "_server", "_utilities"):
        vars(importlib.import_module(f"grpc.{name}"))["time"] = machine

    def keep_up() -> None:
        nonlocal offset
        while True:
            time.sleep(0.1)
            wanted = float(file.read_text())
            if wanted != offset:
                moved.shift(wanted - offset)
                offset = wanted

    threading.Thread(target=keep_up, daemon=True).start()


if "DIGEST_TEST_CLOCK" in os.environ:
    try:
        follow(Path(os.environ["DIGEST_TEST_CLOCK"]))
    except BaseException as error:  # noqa: BLE001
        # Python would go on without: then the daemon would run by today's date.
        sys.exit(f"the clock cannot be moved: {error!r}")
