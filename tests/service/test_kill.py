"""kill -9 of a writing process loses no acknowledged event and applies none twice.

`REMEM_KILLS=500` for the full count (about two minutes). This says nothing about power cuts: test_power_cut.py does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from service_parts import SEED

KILLS = int(os.environ.get("REMEM_KILLS", "25"))


def test_killed_writers_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    driver = Path(__file__).with_name("kill_driver.py")
    done = subprocess.run(
        [sys.executable, str(driver), str(tmp_path), str(KILLS), str(SEED)],
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, f"seed {SEED}: {done.stderr}"
    found = json.loads(done.stdout)
    print(f"seed {SEED}: {found}")
    assert found["kills"] == KILLS
    assert found["acknowledged"] > KILLS  # the writers had got going
    assert (found["lost"], found["mismatches"], found["damaged"]) == (0, 0, 0), f"seed {SEED}: {found}"
