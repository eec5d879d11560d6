"""What a saved file says of itself, read without torch or its tensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from remem.errors import BadInput

MODEL_FILE = "model.safetensors"
RECORD_FORMAT = 1  # of the JSON record of a run


def model_path(model: Path | str) -> Path:
    """The file of a saved model, given by its folder or by itself."""
    path = Path(model)
    return path if path.suffix == ".safetensors" else path / MODEL_FILE


def read_header(path: Path, *required: str) -> dict[str, Any]:
    """The JSON values in a file's header, `required` names among them; any other file is refused with a sentence."""
    try:
        with safe_open(path, framework="numpy") as file:
            info: dict[str, Any] = json.loads((file.metadata() or {})["remem"])
    except FileNotFoundError:
        raise BadInput(f"{path} does not exist; give the folder of a run or of a saved model.") from None
    except (SafetensorError, KeyError, json.JSONDecodeError) as error:
        raise BadInput(f"{path} is not a file that remem saved, or it is damaged ({error}).") from None
    if missing := [name for name in required if name not in info]:
        raise BadInput(f"{path} is a file of another kind: its header has no {missing[0]!r}.")
    return info
