"""Writes to a store while every write and sync is recorded; acknowledgements go to a file in the same folder.

python tests/service/power_child.py FOLDER DURABILITY APPENDS
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

from kill_driver import STREAMS, event_at
from service_parts import HashChain

from remem.service import MemoryEngine

if __name__ == "__main__":
    folder, durability, appends = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    chosen: Any = durability
    engine = MemoryEngine.open(folder / "memories.db", HashChain(), durability=chosen)
    acknowledged = os.open(folder / "acknowledged", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(stream: str) -> None:
        for turn in range(appends):
            seq = 2 * turn
            engine.append(stream, [event_at(stream, seq), event_at(stream, seq + 1)], seq=seq)
            os.write(acknowledged, f"{stream} {seq + 2}\n".encode())
            if stream == STREAMS[0] and turn % 40 == 39:
                engine.append("passing", [event_at("passing", 0)], seq=0)
                engine.delete("passing")  # empties the log: a checkpoint in full

    writers = [threading.Thread(target=write, args=(stream,)) for stream in STREAMS]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    os._exit(0)  # without closing: the log stays
