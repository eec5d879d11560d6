from __future__ import annotations

import json
import resource
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from builders import CODEC, RM, TEXT_CODEC, make_model, questions_at, random_stream
from safetensors.torch import save_file

from remem.build import build_sampler
from remem.bundle import (
    MODEL_FILE,
    fingerprint_of,
    load_bundle,
    load_sampler,
    load_tensors,
    load_weights,
    save_bundle,
    save_sampler,
    save_tensors,
    weights_of,
)
from remem.errors import BadInput, RememError
from remem.model.embed import SentenceQueryEncoder
from remem.settings.run import Run

RUN = Run(model=RM)
TIED = replace(RM, reasoner=replace(RM.reasoner, tie_query_words=True))


def test_a_saved_model_gives_equal_answers_once_loaded(tmp_path: Path) -> None:
    model, stream, query = make_model(RM), random_stream(3, 4), questions_at([[4], [1], [0]])
    fingerprint = save_bundle(tmp_path / "new", model, RUN, CODEC)
    bundle = load_bundle(tmp_path / "new")
    assert torch.equal(bundle.model(stream, query), model(stream, query))
    assert (bundle.run, bundle.codec, bundle.fingerprint) == (RUN, CODEC, fingerprint)
    assert not bundle.model.training


def test_words_that_are_shared_are_saved_once_and_shared_again(tmp_path: Path) -> None:
    model = make_model(TIED, TEXT_CODEC)
    save_bundle(tmp_path, model, replace(RUN, model=TIED), TEXT_CODEC)
    tensors, _ = load_tensors(tmp_path / MODEL_FILE)
    loaded = load_bundle(tmp_path).model
    assert not any("words" in name for name in tensors)
    assert isinstance(loaded.query_encoder, SentenceQueryEncoder)
    assert loaded.query_encoder.words is loaded.embed.table
    assert torch.equal(loaded.embed.table.weight, model.embed.table.weight)


def test_a_bundle_may_be_named_by_its_file(tmp_path: Path) -> None:
    fingerprint = save_bundle(tmp_path, make_model(RM), RUN, CODEC)
    assert load_bundle(str(tmp_path / MODEL_FILE)).fingerprint == fingerprint


def test_saving_again_replaces_the_file_and_leaves_no_other(tmp_path: Path) -> None:
    save_bundle(tmp_path, make_model(RM), RUN, CODEC)
    fingerprint = save_bundle(tmp_path, make_model(RM), RUN, CODEC)
    assert load_bundle(tmp_path).fingerprint == fingerprint
    assert [path.name for path in tmp_path.iterdir()] == [MODEL_FILE]


def test_a_disk_that_is_full_leaves_the_old_file_alone_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "old.safetensors"
    save_tensors(path, {"x": torch.zeros(2)}, {"step": 1})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))  # which fails in the middle of a file, as a full disk does
    try:
        with pytest.raises(RememError, match=r"old\.safetensors can't be written \(File too large; [\d,]+ bytes\)"):
            save_tensors(path, {"x": torch.zeros(1000)}, {"step": 2})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert load_tensors(path, "step")[1] == {"step": 1}
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_a_fingerprint_changes_with_any_weight_and_with_nothing_else() -> None:
    model = make_model(RM)
    before = fingerprint_of(model)
    model(random_stream(2, 3), questions_at([[3], [1]]))
    assert fingerprint_of(model) == before
    with torch.no_grad():
        model.head.classify.bias[0] += 1e-3
    assert fingerprint_of(model) != before


def test_a_missing_file_is_refused_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="does not exist"):
        load_bundle(tmp_path)


@pytest.mark.parametrize("damage", ["cut short", "other bytes", "no header"])
def test_a_damaged_file_is_refused_with_a_sentence(tmp_path: Path, damage: str) -> None:
    save_bundle(tmp_path, make_model(RM), RUN, CODEC)
    path = tmp_path / MODEL_FILE
    if damage == "cut short":
        path.write_bytes(path.read_bytes()[:-100])
    elif damage == "other bytes":
        path.write_bytes(b"not a model at all")
    else:
        save_file({"weight": torch.zeros(2)}, path)
    with pytest.raises(BadInput, match="is not a file that remem saved, or it is damaged"):
        load_bundle(tmp_path)


@pytest.mark.parametrize("place", ["a number", "a setting"])
def test_whatever_is_altered_on_disk_is_noticed(tmp_path: Path, place: str) -> None:
    path = tmp_path / "own.safetensors"
    kept = {"weight": torch.zeros(3), "flag": torch.tensor(True), "half": torch.ones(2, dtype=torch.bfloat16)}
    said = {"keep_bias": 5.0, "names": ("a", "b"), "at": {10: 1, 9: 2}}
    save_tensors(path, kept, said)
    tensors, info = load_tensors(path, "keep_bias")
    assert all(torch.equal(tensors[name], value) for name, value in kept.items())
    assert info == {"keep_bias": 5.0, "names": ["a", "b"], "at": {"10": 1, "9": 2}}
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]) if place == "a number" else data.replace(b"5.0", b"1.0"))
    with pytest.raises(BadInput, match="a byte of it has changed"):
        load_tensors(path, "keep_bias")


def test_a_file_from_before_there_was_a_digest_is_read(tmp_path: Path) -> None:
    path = tmp_path / "older.safetensors"
    save_file({"weight": torch.ones(2)}, path, metadata={"remem": '{"step": 3}'})
    assert load_tensors(path, "step")[1] == {"step": 3}


def test_a_weight_altered_on_disk_is_noticed(tmp_path: Path) -> None:
    save_bundle(tmp_path, make_model(RM), RUN, CODEC)
    path = tmp_path / MODEL_FILE
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(BadInput, match="a byte of it has changed"):
        load_bundle(tmp_path)


def test_a_weight_altered_in_a_file_without_a_digest_is_noticed_by_its_fingerprint(tmp_path: Path) -> None:
    save_bundle(tmp_path, make_model(RM), RUN, CODEC)
    tensors, info = load_tensors(tmp_path / MODEL_FILE)
    tensors["head.classify.bias"][0] += 1
    save_file(tensors, tmp_path / MODEL_FILE, metadata={"remem": json.dumps(info)})
    with pytest.raises(BadInput, match="fingerprint"):
        load_bundle(tmp_path)


def test_weights_of_another_model_are_refused_with_a_sentence() -> None:
    weights = weights_of(make_model(RM))
    with pytest.raises(BadInput, match="is on one side only"):
        load_weights(make_model(replace(RM, machine=replace(RM.machine, slot_identity=False))), weights)
    with pytest.raises(BadInput, match="has shape"):
        load_weights(make_model(replace(RM, machine=replace(RM.machine, num_slots=5))), weights)


def test_tensors_and_their_header_come_back_as_they_were(tmp_path: Path) -> None:
    tensors = {"a": torch.randn(2, 3).t(), "b": torch.arange(4)}
    save_tensors(tmp_path / "x.safetensors", tensors, {"seed": 3, "names": ["é"]})
    loaded, info = load_tensors(tmp_path / "x.safetensors")
    assert info == {"seed": 3, "names": ["é"]}
    assert all(torch.equal(loaded[name], tensors[name]) for name in tensors)


def test_a_saved_sampler_comes_back_frozen_and_chooses_the_same(tmp_path: Path) -> None:
    sampler, stream, query = build_sampler(RM, CODEC), random_stream(3, 6), questions_at([[6], [1], [1]])
    save_sampler(tmp_path / "sampler", sampler, RUN, CODEC, {"steps": 7, "code": {"commit": "abc"}})
    loaded, facts = load_sampler(tmp_path / "sampler", CODEC)
    assert facts == {"steps": 7, "code": {"commit": "abc"}}
    assert torch.equal(loaded(stream, query), sampler(stream, query))
    assert torch.equal(loaded.choose(stream, query, 4)[0], sampler.choose(stream, query, 4)[0])
    assert not any(p.requires_grad for p in loaded.parameters())


def test_a_sampler_of_another_task_is_refused_with_a_sentence(tmp_path: Path) -> None:
    save_sampler(tmp_path, build_sampler(RM, CODEC), RUN, CODEC, {})
    with pytest.raises(BadInput, match="other items or answers"):
        load_sampler(tmp_path, replace(CODEC, num_answers=4))


def test_a_file_of_another_kind_is_refused_with_a_sentence(tmp_path: Path) -> None:
    save_tensors(tmp_path / MODEL_FILE, {"weight": torch.zeros(2)}, {"step": 3})
    with pytest.raises(BadInput, match="another kind"):
        load_bundle(tmp_path)


def test_a_sampler_saved_before_there_were_other_heads_still_loads(tmp_path: Path) -> None:
    sampler = build_sampler(RM, CODEC)
    save_sampler(tmp_path, sampler, RUN, CODEC, {})
    tensors, info = load_tensors(tmp_path / "sampler.safetensors")
    older = {name.replace("head.classify.", "head."): tensor for name, tensor in tensors.items()}
    assert older.keys() != tensors.keys()
    del info["facts"]
    save_tensors(tmp_path / "sampler.safetensors", older, info)
    loaded, facts = load_sampler(tmp_path, CODEC)
    assert facts == {}
    assert torch.equal(loaded.head.classify.weight, sampler.head.classify.weight)  # type: ignore[union-attr]
