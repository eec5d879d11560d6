"""ActivityNet-QA: questions, captions and features through one import; vectors stay on disk."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch

from remem.data.activitynetqa import Videos, as_split, count_answers
from remem.data.activitynetqa_files import active_sentences, import_activitynetqa
from remem.data.long_twins import hashed_sentences, write_activitynetqa
from remem.errors import BadInput


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    write_activitynetqa(tmp_path / "raw")
    return tmp_path / "raw"


def captioned(raw: Path) -> Videos:
    folder = raw.parent / "data"
    import_activitynetqa([raw / "dataset"], folder, captions=raw / "captions", encode=hashed_sentences)
    return Videos(folder)


def test_a_second_has_the_mean_of_the_sentences_active_then(raw: Path) -> None:
    data = captioned(raw)
    split = as_split(data, data.questions("train", "val"), data.build_codec(data.questions("train", "val"), 20, 9), 99)
    table = json.loads((raw / "captions" / "train.json").read_text())
    name, entry = next(iter(table.items()))
    first, second = hashed_sentences(entry["sentences"])
    frames = data.vectors[data.frames[slice(*data.bounds[0])].long()].float()
    half = int(entry["duration"] / 2)
    assert name == "v_train0"
    assert len(frames) == 2 * half
    torch.testing.assert_close(frames[0], torch.from_numpy(first), atol=1e-3, rtol=0)
    torch.testing.assert_close(frames[half - 1], torch.from_numpy((first + second) / 2), atol=1e-3, rtol=0)
    torch.testing.assert_close(frames[-1], torch.from_numpy(second), atol=1e-3, rtol=0)
    assert split.batch(0, torch.arange(2)).stream.items.shape[2] == 16


def test_a_second_nobody_speaks_of_is_empty() -> None:
    assert active_sentences(3.2, [[1.0, 1.5]], ["a"]) == [(), (0,), ()]
    assert active_sentences(0.3, [[0.0, 0.3], [0.0, 0.2]], ["a", "b"]) == [(0, 1)]


def test_splits_are_videos_apart_and_chosen_by_held_out_training_videos(raw: Path) -> None:
    data = captioned(raw)
    videos = {
        split: {int(data.rows[i, 1]) for i in data.questions(split, "val")} for split in ("train", "valid", "test")
    }
    assert [len(videos[split]) for split in videos] == [11, 1, 12]
    assert not videos["train"] & videos["valid"]
    assert not (videos["train"] | videos["valid"]) & videos["test"]
    assert all(data.rows[i, 0] == 1 for i in data.questions("test", "val"))
    assert data.questions("test", "test") == []  # no caption describes a test video


def test_only_the_most_frequent_answers_are_classes_and_others_can_never_be_right(raw: Path) -> None:
    data = captioned(raw)
    codec = data.build_codec(data.questions("train", "val"), 20, 2)
    assert sorted(codec.answers) == ["no", "yes"]
    split = as_split(data, data.questions("test", "val"), codec, 99)
    answers = torch.cat([b.query.answer[b.query.mask] for b in split.buckets])
    assert (answers == -1).float().mean() == 0.5
    kinds = torch.cat([b.query.part[b.query.mask] for b in split.buckets])
    assert (kinds[answers == -1] != 3).all()


def test_a_long_video_is_read_at_evenly_spaced_frames(raw: Path) -> None:
    data = captioned(raw)
    questions = data.questions("train", "val")
    split = as_split(data, questions, data.build_codec(questions, 4, 9), 9)
    assert max(split.most_items) == 9
    batch = split.batch(0, torch.arange(2))
    firsts = data.vectors[data.frames[data.bounds[batch.ids[0], 0]].long()].float()
    assert torch.equal(batch.stream.items[batch.stream.order[0, 0], 0], firsts)


@pytest.mark.parametrize("form", ["npy", "h5"])
def test_features_of_any_width_come_back_frame_by_frame(raw: Path, tmp_path: Path, form: str) -> None:
    random = np.random.default_rng(0)
    arrays = {f"v_train{i}": random.normal(size=(3 + i, 7)).astype(np.float32) for i in range(4)}
    arrays |= {f"test{i}": random.normal(size=(5, 7)).astype(np.float32) for i in range(2)}
    arrays["v_somebody_else"] = np.zeros((2, 3), dtype=np.float32)  # of no question: not even looked at
    if form == "npy":
        source = tmp_path / "npy"
        source.mkdir()
        for name, array in arrays.items():
            np.save(source / f"{name}.npy", array)
    else:
        h5py = pytest.importorskip("h5py")
        source = tmp_path / "all.h5"
        with h5py.File(source, "w") as out:
            for name, array in arrays.items():
                out[name] = array
    manifest = import_activitynetqa([raw / "dataset"], tmp_path / "data", features=source)
    assert manifest["videos"] == {"asked about": 36, "found": 6}
    data = Videos(tmp_path / "data")
    assert data.questions("test", "test")
    names = sorted(name for name in arrays if "else" not in name)
    for number, name in enumerate(names):
        frames = data.vectors[data.frames[slice(*data.bounds[number])].long()]
        assert torch.equal(frames, torch.from_numpy(arrays[name]))


def test_the_counter_answers_by_the_longest_beginning_it_has_met(raw: Path) -> None:
    data = captioned(raw)
    # "what is done first" is met word for word, "is anybody ..." often, "is it snowing" always answered no
    found = count_answers(data, data.questions("train", "val"), data.questions("test", "val"))
    assert found[3] == (24, 24)
    assert found[0][1] == found[2][1] == 12
    assert found[0][0] < 12


def test_opening_many_videos_costs_an_index_and_not_their_vectors(raw: Path, tmp_path: Path) -> None:
    def peak(frames: int) -> int:
        source = tmp_path / f"features{frames}"
        source.mkdir()
        for split in ("train", "val"):
            for i in range(12):
                np.save(source / f"{split}{i}.npy", np.zeros((frames, 2048), dtype=np.float32))
        import_activitynetqa([raw / "dataset"], tmp_path / f"data{frames}", features=source)
        tracemalloc.start()
        data = Videos(tmp_path / f"data{frames}")
        questions = data.questions("train", "val")
        split = as_split(data, questions, data.build_codec(questions, 20, 9), 10_000)
        assert split.lengths.sum() == 11 * frames
        _, top = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return top

    peak(20)  # caches fill
    # 21 MB of vectors more, and an index of a few numbers a segment
    assert peak(160) - peak(40) < 200_000


MALFORMED = {
    "no answer": ("train_a.json", "[]", r"have no answer"),
    "unknown type": (
        "train_a.json",
        '[{"question_id": "v_train0_0", "answer": "a", "type": 9}]',
        r"entry 1: type is 9",
    ),
    "empty question": (
        "val_q.json",
        '[{"question_id": "x", "video_name": "y", "question": " "}]',
        r"val_q.json, entry 1: question is ' '",
    ),
    "not JSON": ("val_q.json", "[", r"val_q.json, line 1: this is not JSON"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_questions_are_refused_with_their_place(raw: Path, tmp_path: Path, case: str) -> None:
    name, content, message = MALFORMED[case]
    (raw / "dataset" / name).write_text(content)
    with pytest.raises(BadInput, match=message):
        import_activitynetqa([raw / "dataset"], tmp_path / "data", captions=raw / "captions", encode=hashed_sentences)
    assert not (tmp_path / "data").exists()


def test_malformed_videos_are_refused_by_name(raw: Path, tmp_path: Path) -> None:
    table = json.loads((raw / "captions" / "train.json").read_text())
    table["v_train3"]["timestamps"].pop()
    (raw / "captions" / "train.json").write_text(json.dumps(table))
    with pytest.raises(BadInput, match=r"train.json, video v_train3"):
        import_activitynetqa([raw / "dataset"], tmp_path / "data", captions=raw / "captions", encode=hashed_sentences)
    features = tmp_path / "npy"
    features.mkdir()
    np.save(features / "train0.npy", np.zeros(3))
    with pytest.raises(BadInput, match=r"train0.npy has the shape \(3,\)"):
        import_activitynetqa([raw / "dataset"], tmp_path / "data", features=features)
    np.save(features / "train0.npy", np.zeros((2, 3)))
    np.save(features / "train1.npy", np.zeros((2, 4)))
    with pytest.raises(BadInput, match="train1 does not go with the others"):
        import_activitynetqa([raw / "dataset"], tmp_path / "data", features=features)
    np.save(features / "train1.npy", np.full((2, 3), np.nan))
    with pytest.raises(BadInput, match="not finite"):
        import_activitynetqa([raw / "dataset"], tmp_path / "data", features=features)
    (features / "train1.npy").write_bytes(b"")
    with pytest.raises(BadInput, match=r"train1.npy is not an array of numbers"):
        import_activitynetqa([raw / "dataset"], tmp_path / "data", features=features)
    with pytest.raises(BadInput, match="either --features or --captions"):
        import_activitynetqa([raw / "dataset"], tmp_path / "data")


def test_a_video_without_one_array_is_refused_by_name(raw: Path, tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    array = np.ones((2, 3), dtype=np.float32)
    cases = {
        "nothing": lambda out: out.create_group("v_train0"),
        "a link to nowhere": lambda out: out.__setitem__("v_train0", h5py.SoftLink("/nowhere")),
        "an empty space": lambda out: out.__setitem__("v_train0", h5py.Empty("f4")),
        # which of them is meant?
        "two arrays": lambda out: out.create_group("v_train0").update({"boxes": array, "features": array}),
    }
    for number, fill in enumerate(cases.values()):
        with h5py.File(tmp_path / f"{number}.h5", "w") as out:
            fill(out)
        with pytest.raises(BadInput, match=rf"{number}.h5, v_train0 holds [02] arrays; expected one a video"):
            import_activitynetqa([raw / "dataset"], tmp_path / "data", features=tmp_path / f"{number}.h5")
    with pytest.raises(BadInput, match=r"none.h5 does not exist"):
        import_activitynetqa([raw / "dataset"], tmp_path / "data", features=tmp_path / "none.h5")


def test_a_file_that_is_no_array_is_refused_by_name_and_told_once(raw: Path, tmp_path: Path) -> None:
    file = tmp_path / "npy" / "v_train0.npy"
    file.parent.mkdir()
    with file.open("wb") as out:
        np.savez(out, np.ones((2, 3)))
    with pytest.raises(BadInput, match=r"v_train0.npy holds several arrays"):
        import_activitynetqa([raw / "dataset"], tmp_path / "data", features=file.parent)
    file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(BadInput, match=r"v_train0.npy is not an array of numbers"):
        import_activitynetqa([raw / "dataset"], tmp_path / "data", features=file.parent)
    for shape in ((0, 3), (3, 0)):
        np.save(file, np.ones(shape))
        with pytest.raises(BadInput, match=rf"^{file} has the shape \({shape[0]}, {shape[1]}\)"):
            import_activitynetqa([raw / "dataset"], tmp_path / "data", features=file.parent)
    np.save(file, np.full((2, 3), 1e300))
    with pytest.raises(BadInput, match=rf"^{file} holds numbers that are not finite, or too large"):
        import_activitynetqa([raw / "dataset"], tmp_path / "data", features=file.parent)


@pytest.mark.parametrize("prefix", ["", "v_"])
def test_a_video_whose_own_id_begins_as_the_prefix_does_is_found(raw: Path, tmp_path: Path, prefix: str) -> None:
    """There is such a video: v_UmAH95xls."""
    for kind in "qa":
        path = raw / "dataset" / f"train_{kind}.json"
        path.write_text(path.read_text().replace('"train0"', '"v_train0"'))
    (tmp_path / "npy").mkdir()
    for name in ("v_train0", "train1"):
        np.save(tmp_path / "npy" / f"{prefix}{name}.npy", np.ones((2, 3)))
    manifest = import_activitynetqa([raw / "dataset"], tmp_path / "data", features=tmp_path / "npy")
    assert manifest["videos"]["found"] == 2
