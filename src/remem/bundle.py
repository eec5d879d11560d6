"""Models on disk: one safetensors file holds weights, settings and codec; JSON and tensors only, nothing that can run.

Each is written under a temporary name, synced and renamed: whatever happens, there is a whole file or the old one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn

from remem.build import Model, build_model, build_sampler
from remem.data.codec import Codec, codec_from_json
from remem.errors import BadInput
from remem.files import write_file
from remem.header import MODEL_FILE, model_path, read_header
from remem.model.sampler import HistorySampler
from remem.settings.codec import from_json, to_json
from remem.settings.run import Run

SAMPLER_FILE = "sampler.safetensors"
DIGEST = "sha256"


class Bundle(NamedTuple):
    """A trained model with all that is needed to use it."""

    model: Model
    run: Run
    codec: Codec
    fingerprint: str


def save_tensors(path: Path, tensors: dict[str, Tensor], info: dict[str, Any]) -> None:
    """Tensors, and JSON values in the file's own header."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    info = json.loads(json.dumps(info))  # as it will be read
    write_file(path, save(plain, metadata={"remem": json.dumps(info | {DIGEST: _digest(plain, info)})}))


def load_tensors(path: Path, *required: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `save_tensors` wrote, with the `required` names in its header; anything else is refused with a sentence."""
    info = read_header(path, *required)
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    # a file from before there was a digest has none
    if info.pop(DIGEST, None) not in (None, _digest(tensors, info)):
        raise BadInput(f"{path} is not as it was saved: a byte of it has changed; take a copy that is whole.")
    return tensors, info


def _digest(tensors: dict[str, Tensor], info: dict[str, Any]) -> str:
    """SHA-256 of all that a file says."""
    digest = hashlib.sha256(json.dumps(info, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        _add(digest, name, tensor)
    return digest.hexdigest()


def _add(digest: hashlib._Hash, name: str, tensor: Tensor) -> None:
    """Name, type, shape and bytes."""
    plain = tensor.detach().cpu().contiguous()
    digest.update(f"{name} {plain.dtype} {tuple(plain.shape)};".encode())
    digest.update(plain.flatten().view(torch.uint8).numpy().data)


def weights_of(module: nn.Module) -> dict[str, Tensor]:
    """Every parameter once, also where two modules share it."""
    return dict(module.named_parameters())


def load_weights(module: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Copy tensors into a module's parameters; names and shapes must agree."""
    own = weights_of(module)
    if own.keys() != tensors.keys():
        odd = sorted(own.keys() ^ tensors.keys())
        raise BadInput(f"The weights do not fit this model: {odd[0]!r} is on one side only ({len(odd)} such names).")
    with torch.no_grad():
        for name, parameter in own.items():
            if parameter.shape != tensors[name].shape:
                raise BadInput(f"{name} has shape {tuple(tensors[name].shape)}; expected {tuple(parameter.shape)}.")
            parameter.copy_(tensors[name])


def fingerprint_of(module: nn.Module) -> str:
    """SHA-256 of names, shapes and bytes of all weights: a memory means nothing to other weights."""
    digest = hashlib.sha256()
    for name, parameter in sorted(weights_of(module).items()):
        _add(digest, name, parameter)
    return digest.hexdigest()[:16]


def save_bundle(folder: Path, model: Model, run: Run, codec: Codec) -> str:
    """Write `folder/model.safetensors`; returns the fingerprint."""
    folder.mkdir(parents=True, exist_ok=True)
    fingerprint = fingerprint_of(model)
    info = {"run": to_json(run), "codec": dataclasses.asdict(codec), "fingerprint": fingerprint}
    save_tensors(folder / MODEL_FILE, weights_of(model), info)
    return fingerprint


def load_bundle(folder: Path | str) -> Bundle:
    """The model saved in a folder, ready to answer."""
    path = Path(folder)
    tensors, info = load_tensors(model_path(path), "run", "codec", "fingerprint")
    run, codec = from_json(Run, info["run"]), codec_from_json(info["codec"])
    model = build_model(run.model, codec)
    load_weights(model, tensors)
    if fingerprint_of(model) != info["fingerprint"]:
        raise BadInput(f"The weights in {path} do not have the fingerprint they were saved with; the file is damaged.")
    return Bundle(model.eval(), run, codec, info["fingerprint"])


def save_sampler(folder: Path, sampler: HistorySampler, run: Run, codec: Codec, facts: dict[str, Any]) -> None:
    """Write a trained history sampler, for other runs on the same task; `facts` say what training it took."""
    folder.mkdir(parents=True, exist_ok=True)
    info = {"run": to_json(run), "codec": dataclasses.asdict(codec), "facts": facts}
    save_tensors(folder / SAMPLER_FILE, weights_of(sampler), info)


def load_sampler(folder: Path, codec: Codec) -> tuple[HistorySampler, dict[str, Any]]:
    """A frozen history sampler and its facts; one of other items would choose at random, so its codec must fit."""
    tensors, info = load_tensors(folder / SAMPLER_FILE, "run", "codec")
    if codec_from_json(info["codec"]) != codec:
        raise BadInput(f"The history sampler in {folder} was trained on other items or answers than this task has.")
    sampler = build_sampler(from_json(Run, info["run"]).model, codec)
    # a sampler saved before there were other heads than classes names its head's weights without the layer
    older = {"head.weight": "head.classify.weight", "head.bias": "head.classify.bias"}
    load_weights(sampler, {older.get(name, name): tensor for name, tensor in tensors.items()})
    # nor did one from before then say what it took
    return sampler.eval().requires_grad_(False), info.get("facts", {})
