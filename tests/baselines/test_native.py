"""Methods in their native form: one sequence of story and questions, their own readers, their own losses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from remem.baselines.native import NativeWordModel, interleave
from remem.baselines.native_stm import NativeSTM
from remem.build import build_memorizer, build_model
from remem.bundle import load_bundle, save_bundle
from remem.data.batch import Batch, QueryBatch, Segment, StreamBatch
from remem.data.codec import IdCodec, TextCodec
from remem.errors import BadInput
from remem.settings.baselines import (
    DMSDNCSettings,
    DNCSettings,
    NativeSTMSettings,
    NativeWordSettings,
    NUTMSettings,
)
from remem.settings.model import ModelSettings, without_rehearsal
from remem.settings.run import Run
from remem.streaming.memory import StreamMemory
from remem.training.objective import DirectObjective, make_objective, reason_loss

CODEC = TextCodec(segment_len=9, words=[f"w{i}" for i in range(12)], answers=["a", "b", "c"])
PLAIN = without_rehearsal(ModelSettings(item_dim=6, model_dim=6))
SMALL: dict[str, Any] = {"num_slots": 4, "slot_dim": 5, "controller_dim": 7, "num_reads": 2}
MACHINES: dict[str, NativeWordSettings | NativeSTMSettings] = {
    "dnc": NativeWordSettings(memory=DNCSettings(**SMALL, norm_interface=False)),
    "nutm": NativeWordSettings(memory=NUTMSettings(**SMALL, norm_controller=True)),
    "dmsdnc": NativeWordSettings(memory=DMSDNCSettings(**SMALL, norm_interface=False), bypass_dropout=0.1),
    "stm": NativeSTMSettings(width=5, num_queries=3, hidden_dim=7),
}
WORDS = ("dnc", "nutm", "dmsdnc")
Story = tuple[list[list[int]], list[tuple[int, list[int]]]]  # sentences; questions with their positions


@pytest.fixture(autouse=True)
def _fixed_seed_and_one_thread() -> Iterator[None]:
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(params=MACHINES)
def method(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def make(name: str, **changes: Any) -> Any:
    return build_model(replace(PLAIN, machine=replace(MACHINES[name], **changes)), CODEC).eval()


def assert_close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)


def padded(rows: list[list[int]], width: int) -> tuple[Tensor, Tensor]:
    """What stands at a padded word is a word like any other."""
    values, mask = torch.full((len(rows), width), 11), torch.zeros(len(rows), width, dtype=torch.bool)
    for i, row in enumerate(rows):
        values[i, : len(row)], mask[i, : len(row)] = torch.tensor(row, dtype=torch.long), True
    return values, mask


def batch_of(*stories: Story, words: int = 5) -> Batch:
    """Stories whose sentences are held once in a shared table, padded to the longest, and their questions."""
    table = sorted({tuple(sentence) for sentences, _ in stories for sentence in sentences})
    items, item_mask = padded([list(row) for row in table], 4)
    t, q = max(len(sentences) for sentences, _ in stories), max(len(questions) for _, questions in stories)
    order, segment_mask = torch.zeros(len(stories), t, dtype=torch.long), torch.zeros(len(stories), t).bool()
    tokens, token_mask = torch.full((len(stories), q, words), 11), torch.zeros(len(stories), q, words).bool()
    position, mask = torch.zeros(len(stories), q, dtype=torch.long), torch.zeros(len(stories), q).bool()
    token_mask[..., 0] = True  # a padded question has one word and is asked of the empty memory
    for i, (sentences, questions) in enumerate(stories):
        for j, sentence in enumerate(sentences):
            order[i, j], segment_mask[i, j] = table.index(tuple(sentence)), True
        for j, (place, asked) in enumerate(questions):
            tokens[i, j], token_mask[i, j] = (row[0] for row in padded([asked], words))
            position[i, j], mask[i, j] = place, True
    longest = max(sum(map(len, sentences)) for sentences, _ in stories)
    answer = torch.arange(len(stories) * q).view(len(stories), q) % 3
    stream = StreamBatch(items, item_mask, order, segment_mask, most_items=longest)
    query = QueryBatch(tokens, token_mask, position, answer, mask, answer, answer)
    return Batch(stream, query, torch.arange(len(stories)))


FIRST: Story = ([[1, 2, 3], [4], [5, 6]], [(1, [7, 8]), (3, [9]), (3, [10, 7, 8])])
SECOND: Story = ([[4], [1, 2, 3], [4], [2]], [(4, [8, 8]), (0, [7])])


def scores_of(model: Any, *stories: Story) -> Tensor:
    batch = batch_of(*stories)
    result: Tensor = model(batch.stream, batch.query)
    return result


def test_the_sequence_is_the_one_written_out_by_hand() -> None:
    batch = batch_of(FIRST, SECOND)
    words = interleave(batch.stream, batch.query)
    by_hand = (
        # a bracket is a question; those of one moment come in their order
        ([1, 2, 3, 7, 8, 4, 5, 6, 9, 10, 7, 8], "...??...????", [5, 9, 12]),
        ([7, 4, 1, 2, 3, 4, 2, 8, 8], "?......??", [9, 1]),
    )
    for i, (ids, kinds, read) in enumerate(by_hand):
        assert words.ids[i, : len(ids)].tolist() == ids
        assert words.real[i].sum() == len(ids)
        assert words.real[i, : len(ids)].all()
        assert words.story[i].tolist() == [kind == "." for kind in kinds.ljust(words.ids.shape[1], "?")]
        assert words.read[i, : len(read)].tolist() == read


@pytest.mark.parametrize("seed", range(5))
def test_any_sequence_holds_all_words_in_the_order_of_reading(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)

    def pick(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=draw))

    stories: list[Story] = []
    for _ in range(3):
        sentences = [[pick(0, 11) for _ in range(pick(1, 5))] for _ in range(pick(1, 5))]
        asked = [(pick(0, len(sentences) + 1), [pick(0, 11) for _ in range(pick(1, 6))]) for _ in range(pick(1, 5))]
        stories.append((sentences, asked))
    batch = batch_of(*stories)
    words = interleave(batch.stream, batch.query)
    unknown = interleave(batch.stream._replace(most_items=None), batch.query)
    for i, (sentences, asked) in enumerate(stories):
        expected: list[int] = []
        ends: dict[int, int] = {}
        for place in range(len(sentences) + 1):
            for j, (position, question) in enumerate(asked):
                if position == place:
                    expected += question
                    ends[j] = len(expected)
            expected += sentences[place] if place < len(sentences) else []
        assert words.ids[i][words.real[i]].tolist() == expected == unknown.ids[i][unknown.real[i]].tolist()
        assert words.read[i, : len(asked)].tolist() == [ends[j] for j in range(len(asked))]


def test_a_question_sees_nothing_of_what_comes_after_it(method: str) -> None:
    model = make(method)
    whole = scores_of(model, FIRST)
    changed = scores_of(model, ([[1, 2, 3], [9], [2]], [(1, [7, 8]), (3, [5]), (3, [10, 7, 8])]))
    assert_close(changed[:, 0], whole[:, 0])
    assert not torch.allclose(changed[:, 1], whole[:, 1])
    cut = scores_of(model, ([[1, 2, 3]], [(1, [7, 8])]))
    assert_close(cut[:, 0], whole[:, 0])
    later = scores_of(model, (FIRST[0], [*FIRST[1][:2], (3, [2])]))
    assert_close(later[:, 1], whole[:, 1])


def test_neither_neighbours_nor_padding_change_an_answer(method: str) -> None:
    model = make(method)
    alone, beside = scores_of(model, FIRST), scores_of(model, SECOND, FIRST)
    assert_close(beside[1:], alone)
    batch = batch_of(FIRST, words=9)
    assert_close(model(batch.stream, batch.query), alone)
    unknown = batch_of(FIRST).stream._replace(most_items=None)
    assert_close(model(unknown, batch_of(FIRST).query), alone)


@pytest.mark.parametrize("name", MACHINES)
def test_questions_are_written_by_those_that_read_word_by_word(name: str) -> None:
    model = make(name)
    both = scores_of(model, ([[1, 2], [3]], [(1, [7, 8]), (2, [9])]))
    other = scores_of(model, ([[1, 2], [3]], [(1, [5]), (2, [9])]))
    assert torch.allclose(both[:, 1], other[:, 1], rtol=1e-5, atol=1e-6) == (name == "stm")


@pytest.mark.parametrize("name", WORDS)
def test_the_answer_is_read_at_the_last_word_of_its_question(name: str) -> None:
    model = make(name)
    cell, state = model.memory.cell, model.memory.cell.initial_state(1)
    expected = {}
    for count, word in enumerate([1, 2, 3, 7, 8, 4, 5, 6, 9, 10, 7, 8], start=1):
        state = cell(state, cell.project(model.embed(torch.tensor([word]))), torch.tensor([True]))
        expected[count] = model.out(torch.cat([cell.features(state.hidden), state.reads], dim=-1))
    scores = scores_of(model, FIRST)
    for question, count in enumerate((5, 9, 12)):
        assert_close(scores[:, question], expected[count])


def test_the_bypass_dropout_is_on_the_controllers_side_alone() -> None:
    model = make("dnc", bypass_dropout=1.0)
    batch = batch_of(FIRST)
    hidden = model.memory.cell.initial_state(1).hidden.shape[1]
    with torch.no_grad():
        model.out.weight[:, hidden:] = 0.0
    assert not torch.allclose(model(batch.stream, batch.query), model.out.bias)
    assert_close(model.train()(batch.stream, batch.query), model.out.bias.expand(1, 3, 3))


OWN = {"dnc": set(), "nutm": {"program_keys"}, "dmsdnc": {"reproduction"}, "stm": set()}


def test_losses_of_its_own_are_there_only_while_it_trains(method: str) -> None:
    model, batch = make(method), batch_of(FIRST, SECOND)
    answers = model.answer_and_losses(batch.stream, batch.query)
    assert answers.losses == {}
    assert_close(answers.scores, model(batch.stream, batch.query))
    losses = model.train().answer_and_losses(batch.stream, batch.query).losses
    assert set(losses) == OWN[method]


def test_all_losses_are_added_and_logged(method: str) -> None:
    model, batch = make(method).train(), batch_of(FIRST, SECOND)
    objective = make_objective(model, PLAIN.rehearsal, None)
    assert isinstance(objective, DirectObjective)
    total, logs = objective(batch)
    parts = {name for name in logs if name.startswith("loss_")}
    assert parts == {"loss_reason", *(f"loss_{name}" for name in OWN[method])}
    assert_close(total.detach(), torch.stack([logs[name] for name in parts]).sum())
    assert "input_gate" in logs if method == "stm" else "write_entropy" in logs


def everything_reproduced() -> NativeWordModel:
    """All words of a story are chosen, and nothing is left to chance."""
    memory = DMSDNCSettings(**SMALL, reproduced=1.0, bypass_dropout=0.0)
    return make("dmsdnc", memory=memory, bypass_dropout=0.0).train()  # type: ignore[no-any-return]


def test_an_answer_weighs_as_many_words_as_are_chosen_for_each() -> None:
    """The original weighs each answer by chosen / answers; question words and padding are never chosen."""
    model, batch = everything_reproduced(), batch_of(FIRST, SECOND)
    words = interleave(batch.stream, batch.query)
    states = list(model._states(words))[1:]
    head: Any = model.memory.head  # type: ignore[union-attr]
    chosen, word_loss = 0, 0.0
    for i in range(2):
        for step in range(words.ids.shape[1]):
            if words.story[i, step]:
                features = model.memory.cell.features(states[step].hidden[i])
                named = head(features, states[step].reads[i])
                word_loss += float(F.cross_entropy(named[None].detach(), words.ids[i, step][None]))
                chosen += 1
    assert chosen == 6 + 6
    scores = model(batch.stream, batch.query)
    counted = batch.query.mask
    answer_loss = float(F.cross_entropy(scores[counted].detach(), batch.query.answer[counted], reduction="sum"))
    weighted = word_loss + chosen / int(counted.sum()) * answer_loss
    total, _ = DirectObjective(model)(batch)
    assert float(total.detach()) == pytest.approx(weighted / chosen, rel=1e-5)


def test_the_gradient_reaches_all_that_is_used(method: str) -> None:
    model, batch = make(method).train(), batch_of(FIRST, SECOND)
    if method == "stm":
        model.memory.cell.alpha2.data.fill_(0.5)  # it starts at zero, and then nothing passes by it
    DirectObjective(model)(batch)[0].backward()
    still = {name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()}
    # the map from slots to the shared reasoner has no part in this, and with one block there is no mark of it
    assert all(name.startswith(("memory.cell.slot_map", "memory.cell.block_code")) for name in still), still
    assert method != "stm" or not still


def test_stm_answers_as_its_reader_does_word_by_word_and_step_by_step() -> None:
    model = make("stm")
    assert isinstance(model, NativeSTM)
    memory, reader = model.memory, model.reader
    for story in (FIRST, SECOND):
        scores = scores_of(model, story)
        for j, (position, question) in enumerate(story[1]):
            state = memory.initial_state(1)
            for sentence in story[0][:position]:
                words = model.embed(torch.tensor([sentence]))
                state = memory.write(state, Segment(words, torch.ones(1, len(sentence), dtype=torch.bool)))
            relations = state.relations[0]
            asked = sum((memory.position[k] * model.embed(torch.tensor(word)) for k, word in enumerate(question)), 0.0)
            found, total = reader.to_entity(asked), torch.zeros(5)
            for step in range(3):
                role = reader.to_roles[step](asked)
                read = torch.zeros(5)
                for n in range(3):
                    for row in range(5):
                        read = read + role[n] * found[row] * relations[n, row]
                found = (read - read.mean()) / (read.var(correction=0) + 1e-12).sqrt()  # gain one, bias zero
                total = total + found
            torch.testing.assert_close(scores[0, j], reader.out.weight @ total, rtol=1e-4, atol=1e-5)


def test_a_question_longer_than_the_masks_of_stm_is_refused() -> None:
    batch = batch_of(FIRST, words=10)
    with pytest.raises(BadInput, match="A question of 10 words was given to a model that knows 9 places"):
        build_model(replace(PLAIN, machine=MACHINES["stm"]), CODEC)(batch.stream, batch.query)


@pytest.mark.parametrize("name", ["dnc", "stm"])
def test_it_learns_which_word_came_first(name: str) -> None:
    model = make(name).train()
    draw = torch.Generator().manual_seed(0)
    first = torch.randint(3, (64,), generator=draw)
    batch = batch_of(*[([[int(word)], [4, 5]], [(2, [7])]) for word in first], words=1)
    batch = batch._replace(query=batch.query._replace(answer=first[:, None]))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    for _ in range(80):
        optimizer.zero_grad()
        loss, _ = DirectObjective(model)(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
    assert (model.eval()(batch.stream, batch.query)[:, 0].argmax(dim=-1) == first).float().mean() > 0.95


def test_unseen_answers_and_padded_questions_do_not_count(method: str) -> None:
    batch = batch_of(FIRST, SECOND)
    scores = make(method)(batch.stream, batch.query)
    assert scores.isfinite().all()
    unseen = batch.query._replace(answer=torch.full_like(batch.query.answer, -1))
    assert reason_loss(scores, unseen) == 0


@pytest.mark.parametrize("name", MACHINES)
def test_only_text_is_read_in_the_native_form_and_nothing_is_rehearsed(name: str) -> None:
    ids = IdCodec(segment_len=4, num_items=12, num_queries=2, num_answers=3)
    native = replace(PLAIN, machine=MACHINES[name])
    with pytest.raises(BadInput, match="words of one vocabulary; this task asks by number"):
        build_model(native, ids)
    with pytest.raises(BadInput, match="no decoder to rehearse with"):
        build_model(replace(ModelSettings(), machine=MACHINES[name]), CODEC)
    with pytest.raises(BadInput, match="answers by itself"):
        build_memorizer(native, CODEC)


def test_a_bundle_answers_as_before_and_no_stream_memory_opens_it(method: str, tmp_path: Path) -> None:
    model = make(method)
    save_bundle(tmp_path, model, Run(method=method, model=replace(PLAIN, machine=MACHINES[method])), CODEC)
    bundle = load_bundle(tmp_path)
    assert_close(scores_of(bundle.model, FIRST), scores_of(model, FIRST))
    with pytest.raises(BadInput, match="reads the whole stream"):
        StreamMemory.open(bundle)
