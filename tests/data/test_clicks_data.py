"""Click logs: every published form becomes the same streams, and the memory never sees the target."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
import torch

from remem.data.click_files import import_clicks
from remem.data.clicks import FINAL, PARTS, ClickLog, as_split, cuts_of
from remem.data.long_twins import histories, write_clicks
from remem.errors import BadInput
from remem.settings.tasks import ClickTask
from remem.tasks.load import load_task

TASKS = ("lastfm", "assistments", "xlong", "clicks")


def settings(name: str, **changes: int) -> ClickTask:
    return ClickTask(name=name, **{"history": 24, "least": 12, "every": 10, "segment_len": 5} | changes)  # type: ignore[arg-type]


def prepared(folder: Path, name: str) -> ClickLog:
    write_clicks(folder / "raw", name)
    import_clicks(name, [folder / "raw"], folder / "data")
    return ClickLog(folder / "data", name)


@pytest.mark.parametrize("name", TASKS)
def test_users_keep_their_items_in_time_order(tmp_path: Path, name: str) -> None:
    log = prepared(tmp_path, name)
    logs = histories(12, 60)
    assert len(log.users) == 12
    assert sum(log.users[:, 2]) == (3 if name != "clicks" else 2)
    numbers = log.prepared.lines("items") if name == "clicks" else []
    found = []
    for user in range(12):
        items = log.history(user).tolist()
        if name == "assistments":
            assert all(item % 2 == (item // 2 + 1) % 2 for item in items)  # even problems are solved
            items = [item // 2 for item in items]
        found.append([int(numbers[i].removeprefix("item")) for i in items] if name == "clicks" else items)
    expected = [each[:-1] for each in logs] if name == "xlong" else logs
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_a_stream_ends_right_before_its_target(tmp_path: Path, name: str, split: str) -> None:
    log, task = prepared(tmp_path, name), settings(name)
    seen = 0
    for user in log.numbers(split):
        start, end, _ = log.users[user]
        for cut in cuts_of(log, user, task, split):
            seen += 1
            assert max(start, cut.end - task.history) == cut.first < cut.end <= end
            if log.targets is not None:
                assert cut.asked[0].items == tuple(log.targets[user])
                continue
            place, (asked,) = cut.end - start, cut.asked
            target = int(log.history(user)[place])
            if log.responses:
                assert asked.items == (target | 1,)
                assert asked.clicked == (target & 1,)
            else:
                assert asked.items[0] == target
                # what was not clicked has not been met up to the target, nor is it the target
                assert asked.items[1] not in log.history(user)[: place + 1]
                assert asked.clicked == (1, 0)
    assert seen == len(as_split(log, log.numbers(split), task, split))
    assert seen > 0


def test_a_batch_reads_the_history_alone(tmp_path: Path) -> None:
    log, task = prepared(tmp_path, "lastfm"), settings("lastfm")
    users = log.numbers("train")
    cuts = [cut for user in users for cut in cuts_of(log, user, task, "train")]
    split = as_split(log, users, task, "train")
    checked = 0
    for number in range(len(split.buckets)):
        rows = torch.arange(len(split.buckets[number]))
        batch = split.batch(number, rows)
        for row, cut in zip(rows.tolist(), (cuts[i] for i in batch.ids.tolist()), strict=True):
            segments = batch.stream.order[row][batch.stream.segment_mask[row]]
            items = batch.stream.items[segments][batch.stream.item_mask[segments]].tolist()
            assert items == log.events[cut.first : cut.end].tolist()
            assert int(batch.query.position[row, 0]) == len(segments)
            (asked,) = cut.asked
            if asked.evidence >= 0:
                segment = segments[int(batch.query.evidence[row, 0])]
                assert asked.items[0] in batch.stream.items[segment][batch.stream.item_mask[segment]]
                assert asked.items[0] not in items[asked.evidence + 1 :]
            checked += 1
    assert checked == len(cuts) == len(split)


@pytest.mark.parametrize("name", ["lastfm", "assistments"])
def test_asking_along_a_stream_asks_for_what_comes_next_at_each_moment(tmp_path: Path, name: str) -> None:
    log, task = prepared(tmp_path, name), settings(name, along=1)
    users = log.numbers("train")
    cuts = [(user, cut) for user in users for cut in cuts_of(log, user, task, "train")]
    split = as_split(log, users, task, "train")
    checked = 0
    for number in range(len(split.buckets)):
        batch = split.batch(number, torch.arange(len(split.buckets[number])))
        for row, (user, cut) in enumerate(cuts[i] for i in batch.ids.tolist()):
            history, first = log.history(user), cut.first - int(log.users[user, 0])
            read = [*range(15, cut.end - cut.first, 5), cut.end - cut.first]  # least = 12, segments of 5
            assert [asked.read for asked in cut.asked] == read
            each = len(cut.asked[0].items)
            assert int(batch.query.mask[row].sum()) == len(read) * each
            for i, asked in enumerate(cut.asked):
                target = int(history[first + asked.read])
                assert asked.items[0] | 1 == target | 1 if log.responses else asked.items[0] == target
                assert all(item not in history[: first + asked.read + 1] for item in asked.items[1:])
                assert batch.query.position[row, i * each] == -(-asked.read // 5)
                assert batch.query.tokens[row, i * each : (i + 1) * each, 0].tolist() == list(asked.items)
                assert batch.query.answer[row, i * each : (i + 1) * each].tolist() == list(asked.clicked)
                if asked.evidence >= 0:
                    assert asked.evidence < asked.read
                    assert batch.query.evidence[row, i * each] == asked.evidence // 5
                checked += 1
    assert checked > 2 * len(cuts)
    assert all(len(cut.asked) == 1 for user in log.numbers("valid") for cut in cuts_of(log, user, task, "valid"))


@pytest.mark.parametrize("name", ["lastfm", "assistments"])
def test_asking_ahead_asks_for_the_events_that_follow_what_was_read(tmp_path: Path, name: str) -> None:
    log = prepared(tmp_path, name)
    once, more = settings(name, along=2), settings(name, along=2, ahead=3)
    checked = 0
    for user in log.numbers("train"):
        history = log.history(user)
        for one, cut in zip(cuts_of(log, user, once, "train"), cuts_of(log, user, more, "train"), strict=True):
            first = cut.first - int(log.users[user, 0])
            assert (one.first, one.end) == (cut.first, cut.end)
            wanted = [
                (asked.read, first + asked.read + i)
                for asked in one.asked
                for i in range(min(3, len(history) - first - asked.read))
            ]
            assert [asked.read for asked in cut.asked] == [read for read, _ in wanted]
            for asked, (read, place) in zip(cut.asked, wanted, strict=True):
                assert asked.items[0] | log.responses == history[place] | log.responses
                assert asked.evidence < read  # never in what comes after
                assert all(item not in history[: place + 1] for item in asked.items[1:])
                checked += place > first + read
    assert checked > 20
    for split in ("valid", "test"):
        user = log.numbers(split)[0]
        assert list(cuts_of(log, user, once, split)) == list(cuts_of(log, user, more, split))


@pytest.mark.parametrize("changes", [{"ahead": 0}, {"questions": -1}])
def test_strange_numbers_of_questions_are_refused(changes: dict[str, int]) -> None:
    with pytest.raises(BadInput, match=r"expected at least [01]"):
        load_task(settings("lastfm", **changes))


def test_parts_say_how_long_ago_the_target_was_met(tmp_path: Path) -> None:
    lines = [list(range(1, 301)), [7] + [8, 9] * 150]
    text = "301 302 303 304\n"  # users who have met what the others have not
    lines[0][299], lines[1][300] = 200, 7  # last met 100 events ago, and 300
    test = "".join(" ".join(map(str, line)) + "\n" for line in lines)
    (tmp_path / "event-test.txt").write_text(test)
    (tmp_path / "event-train.txt").write_text(text + text)
    import_clicks("lastfm", [tmp_path], tmp_path / "data")
    log = ClickLog(tmp_path / "data", "lastfm")
    task = settings("lastfm", history=1000, least=290, every=1000)
    first, second = (list(cuts_of(log, user, task, "test"))[-1].asked[0] for user in log.numbers("test"))
    assert PARTS[first.part] == "final cut, 51 to 200"
    assert PARTS[second.part] == "final cut, over 200"
    short = settings("lastfm", history=50, least=290, every=1000)
    forgotten = list(cuts_of(log, log.numbers("test")[0], short, "test"))[-1].asked[0]
    assert (PARTS[forgotten.part], forgotten.evidence) == ("final cut, not met", -1)
    earlier = next(cuts_of(log, log.numbers("test")[0], task, "test")).asked[0]
    assert earlier.part < FINAL
    assert PARTS[earlier.part] == "earlier cut, not met"


def test_negatives_follow_popularity_and_the_data_seed_alone(tmp_path: Path) -> None:
    log, task = prepared(tmp_path, "lastfm"), settings("lastfm")
    users = log.numbers("train")

    def drawn(task: ClickTask) -> list[int]:
        return [cut.asked[0].items[1] for user in users for cut in cuts_of(log, user, task, "train")]

    assert drawn(task) == drawn(task)
    assert drawn(task) != drawn(settings("lastfm", data_seed=1))
    many = settings("lastfm", negatives=5)
    five = [cut.asked[0].items for user in users for cut in cuts_of(log, user, many, "train")]
    assert all(len(set(items)) == 6 for items in five)
    assert log.popularity[-1] == sum(len(log.history(user)) for user in users)


def test_a_log_of_test_users_alone_asks_for_items_that_it_holds(tmp_path: Path) -> None:
    """As `remem eval --data event-test.txt` reads it: there is no training user whose events could be counted."""
    write_clicks(tmp_path / "raw", "lastfm")
    import_clicks("lastfm", [tmp_path / "raw" / "event-test.txt"], tmp_path / "data")
    log, task = ClickLog(tmp_path / "data", "lastfm"), settings("lastfm")
    assert not log.numbers("train")
    asked = [cut.asked[0].items[1] for user in log.numbers("test") for cut in cuts_of(log, user, task, "test")]
    assert max(asked) < log.num_items
    assert len(set(asked)) > 1


def test_opening_many_users_costs_an_index_and_not_their_events(tmp_path: Path) -> None:
    def peak(events: int) -> int:
        folder = tmp_path / str(events)
        write_clicks(folder / "raw", "xlong", users=40, events=events)
        import_clicks("xlong", [folder / "raw"], folder / "data")
        tracemalloc.start()
        log = ClickLog(folder / "data", "xlong")
        split = as_split(log, log.numbers("train"), settings("xlong", history=40), "train")
        assert len(split) == 27
        _, top = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return top

    peak(60)  # caches fill
    # 30,000 events a user are 4 MB on disk, and one user's at a time are looked at
    assert peak(30_000) < 30_000 * 8 * 5


def test_a_log_of_short_histories_has_no_cut(tmp_path: Path) -> None:
    log = prepared(tmp_path, "lastfm")
    with pytest.raises(BadInput, match=r"No user of the train split has over 200 events"):
        as_split(log, log.numbers("train"), ClickTask(name="lastfm"), "train")
