"""A real server in a process of its own, with the hash chain for a model, so that it starts in a second.

python tests/service/server_child.py STORE PORT TOKENS [SETTING=VALUE ...]
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from service_parts import HashChain

from remem.server.logs import use_json_logs
from remem.server.metrics import MeteredNetwork, MeteredStore, Metrics
from remem.server.run import listen, serve
from remem.server.service import Service
from remem.server.settings import ServerSettings
from remem.server.tokens import TokenFile
from remem.service import MemoryEngine
from remem.service.opening import open_store


class SlowChain(HashChain):
    """Takes its time."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def fold(self, memory: bytes, segments: Sequence[Sequence[bytes]]) -> bytes:
        time.sleep(self.seconds)
        return super().fold(memory, segments)


def main(store: str, port: str, tokens: str, *pairs: str) -> None:
    given: dict[str, Any] = {name: json.loads(value) for name, value in (pair.split("=") for pair in pairs)}
    slow = given.pop("slow", 0.0)
    settings, metrics = ServerSettings(port=int(port), **given), Metrics()
    use_json_logs("info")
    engine = MemoryEngine.open(
        MeteredStore(open_store(store), metrics),
        MeteredNetwork(SlowChain(slow) if slow else HashChain(), metrics.folds.observe),
    )
    listener = listen(settings)
    ready = lambda: print(listener.getsockname()[1], flush=True)  # noqa: E731
    serve(Service(engine, TokenFile(Path(tokens)), settings, metrics), listener, ready)


if __name__ == "__main__":
    main(*sys.argv[1:])
