"""The training objective (Eq. 6 and 7): reason, recollect, recognise."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from remem.data.batch import Batch, QueryBatch, StreamBatch
from remem.errors import BadInput
from remem.model.assembly import Answered, MemoryModel
from remem.model.embed import ItemEmbedding, SentenceQueryEncoder
from remem.model.fragments import Fragments, make_fragments, random_below
from remem.model.interface import DirectReasoner, OwnLosses, Trace, gather_each, gather_rows
from remem.model.own_questions import draw_questions
from remem.model.rehearsal import familiarity_loss, item_set_distractors, recollection_loss, stream_distractors
from remem.model.sampler import HistorySampler, RandomSampler, Sampler
from remem.settings.model import RehearsalSettings

Logs = dict[str, Tensor]
MISSED = "missed"  # the one among the logs that has a number for each stream


class Losses(NamedTuple):
    """The three parts of L_rm, unweighted."""

    reason: Float[Tensor, ""]
    recollection: Float[Tensor, ""]
    familiarity: Float[Tensor, ""]

    def total(self, settings: RehearsalSettings) -> Float[Tensor, ""]:
        """L_rm = lambda_1 L_rec + lambda_2 L_fam + lambda_3 L_r (Eq. 7)."""
        return (
            settings.recollection_weight * self.recollection
            + settings.familiarity_weight * self.familiarity
            + settings.reason_weight * self.reason
        )


def reason_loss(scores: Float[Tensor, "b q c"], query: QueryBatch, *, per_stream: bool = False) -> Float[Tensor, ""]:
    """L_r: cross-entropy of the right answer, or binary cross-entropy of a click, whose logit is the only score.

    The mean over real questions whose answer can be given at all; or over streams of the mean over each one's.
    """
    counted, answer = query.mask & (query.answer >= 0), query.answer.clamp(min=0)
    if query.asks_clicks(scores):
        loss = F.binary_cross_entropy_with_logits(scores.squeeze(-1).float(), answer.float(), reduction="none")
    else:
        loss = F.cross_entropy(scores.float().flatten(0, 1), answer.flatten(), reduction="none").view_as(answer)
    loss, number = loss.masked_fill(~counted, 0.0), counted.sum(dim=1)
    if per_stream:
        return (loss.sum(dim=1) / number.clamp(min=1)).sum() / (number > 0).sum().clamp(min=1)
    return loss.sum() / number.sum().clamp(min=1)


def missed_streams(scores: Float[Tensor, "b q c"], query: QueryBatch) -> Bool[Tensor, " b"]:
    """Whether a question of each stream was answered wrongly, of those that have an answer to be given."""
    given = scores.squeeze(-1) > 0 if query.asks_clicks(scores) else scores.argmax(dim=-1)
    return ((given != query.answer) & query.mask & (query.answer >= 0)).any(dim=1)


def rehearsed_question(query: QueryBatch, *, anytime: bool = False) -> QueryBatch:
    """One real question of each stream, at random: the sampler chooses fragments for a (stream, question) pair.

    With `anytime` the pair is rehearsed as if the question had come earlier, after a random number of segments. What
    was just written is easiest to recall, so recalling is learned there first and then over longer times.
    """
    noise = torch.rand(query.mask.shape, device=query.mask.device).masked_fill(~query.mask, -1.0)
    index = noise.argmax(dim=1, keepdim=True)
    chosen = query.each(lambda value: gather_rows(value, index))
    if not anytime:
        return chosen
    earlier = 1 + random_below(chosen.position)
    return chosen._replace(position=torch.minimum(earlier, chosen.position), after_all=False)


def rehearsal_losses(
    model: MemoryModel,
    fragments: Fragments,
    memory: Float[Tensor, "b k d"],
    distractors: Int[Tensor, "b f j"] | Float[Tensor, "b f j e"] | None = None,
) -> tuple[Tensor, Tensor]:
    """L_rec and L_fam of the fragments (Eq. 6), as the decoder makes them out from the memory."""
    if model.decoder is None:
        raise BadInput("This model was built without a rehearsal decoder; give a rehearsal weight above zero.")
    rehearsed = model.decoder(fragments, model.embed, memory)
    recollection = recollection_loss(
        rehearsed, fragments, model.embed, scale=model.decoder.recall_scale, distractors=distractors
    )
    return recollection, familiarity_loss(rehearsed, fragments)


def draw_distractors(
    stream: StreamBatch, fragments: Fragments, num_items: int | None, settings: RehearsalSettings
) -> Int[Tensor, "b f j"] | Float[Tensor, "b f j e"] | None:
    """The J distractors of Eq. 3 as the task wants them; None stands for all other items of the vocabulary."""
    if num_items is None and (settings.num_distractors is None or settings.distractors_from == "item-set"):
        raise BadInput(
            "Items that are vectors have no vocabulary to be recalled from; take distractors from the stream, with "
            "--model.rehearsal.distractors-from stream and a number of them in --model.rehearsal.num-distractors."
        )
    if settings.num_distractors is None:
        return None
    if num_items is not None and settings.distractors_from == "item-set":
        return item_set_distractors(fragments, num_items, settings.num_distractors)
    return stream_distractors(stream, fragments, settings.num_distractors)


def slot_spread(memory: Float[Tensor, "b k d"]) -> Float[Tensor, ""]:
    """How different the slots are: distance from their mean, relative to their length; zero when all are equal."""
    memory = memory.detach().float()
    distance = (memory - memory.mean(dim=1, keepdim=True)).norm(dim=-1)
    return (distance / memory.norm(dim=-1).clamp(min=1e-12)).mean()


class MemoryObjective:
    """Loss and diagnostics of a memory model on a batch."""

    def __init__(self, model: MemoryModel, settings: RehearsalSettings, sampler: Sampler | None) -> None:
        if settings.enabled and sampler is None:
            raise BadInput("Rehearsal is on, but there is no sampler to choose fragments.")
        self.model, self.settings, self.sampler = model, settings, sampler
        self.rehearses, self.asks = settings.enabled, settings.ask_weight > 0
        self._rehearsal_losses: Callable[..., tuple[Tensor, Tensor]] = rehearsal_losses

    def compile(self, backend: str = "inductor") -> None:
        """Compile what is one graph each; the scan between them has kernels of its own, and so has a GRU.

        Left out is what sees whole streams, but for one lookup: its shapes differ from bucket to bucket, and each would
        be compiled anew.
        """
        torch._dynamo.config.recompile_limit = 64
        # this analysis fails on some shapes that differ from bucket to bucket (an assertion in torch 2.11)
        torch._inductor.config.triton.coalesce_tiling_analysis = False
        self.model.memory_method.compile_parts(backend)
        self.model.reasoner.compile(backend=backend)
        self._rehearsal_losses = torch.compile(rehearsal_losses, backend=backend)
        if isinstance(self.sampler, HistorySampler):
            self.sampler.segment_means = torch.compile(self.sampler.segment_means, backend=backend)  # type: ignore[method-assign]

    def stop_rehearsing(self) -> None:
        """From now on the answers alone count."""
        self.rehearses = self.asks = False

    def rehearse(
        self, batch: Batch, query: QueryBatch, memory: Float[Tensor, "b k d"]
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """L_rec and L_fam for one question of each stream, from the memory as it was at the question."""
        assert self.sampler is not None  # or there is nothing to rehearse
        settings, stream = self.settings, batch.stream
        chosen = self.sampler.choose(stream, query, settings.num_fragments)
        fragments = make_fragments(
            stream, *chosen, mask_ratio=settings.mask_ratio, replace_ratio=settings.replace_ratio
        )
        distractors = draw_distractors(stream, fragments, self.model.embed.num_items, settings)
        return self._rehearsal_losses(self.model, fragments, memory, distractors)

    def reason(self, answered: Answered, query: QueryBatch) -> Float[Tensor, ""]:
        """L_r of the answers."""
        return reason_loss(answered.scores, query, per_stream=self.settings.per_stream)

    def losses(self, trace: Trace, batch: Batch) -> tuple[Losses, Answered]:
        """All three losses, and the answers."""
        if not self.rehearses:
            answered, zero = self.model.answer_all(trace, batch.query), trace.memories.new_zeros(())
            return Losses(self.reason(answered, batch.query), zero, zero), answered
        query = rehearsed_question(batch.query, anytime=self.settings.anytime)
        asked, rehearsed = gather_each(trace.memories, batch.query.position, query.position)
        answered = self.model.answer_from(asked, batch.query)
        reason, rehearsal = self.reason(answered, batch.query), self.rehearse(batch, query, rehearsed.squeeze(1))
        return Losses(reason, *rehearsal), answered

    def asked(self, trace: Trace, batch: Batch) -> dict[str, Float[Tensor, ""]]:
        """The loss of the questions that streams ask by themselves, if they do."""
        model = self.model
        if model.asker is None or not self.asks:
            return {}
        assert isinstance(model.query_encoder, SentenceQueryEncoder)
        assert isinstance(model.embed, ItemEmbedding)
        own = draw_questions(batch.stream, self.settings.asks)
        memory = gather_rows(trace.memories, own.position).flatten(0, 1)
        reason, _ = model.reasoner(memory, model.asker.question(own, model.query_encoder))
        return {"asked": self.settings.ask_weight * model.asker.loss(reason, own, model.embed)}

    def __call__(self, batch: Batch) -> tuple[Tensor, Logs]:
        trace = self.model.memorize(batch.stream)
        losses, answered = self.losses(trace, batch)
        own = trace.losses | self.asked(trace, batch)
        total = losses.total(self.settings) + sum(own.values())
        read_entropy = torch.special.entr(answered.read_weights.detach()).sum(dim=-1).mean(dim=-1)  # [b, q]
        read_entropy = read_entropy.masked_fill(~batch.query.mask, 0.0).sum() / batch.query.mask.sum().clamp(min=1)
        logs = {
            "loss": total,
            **{f"loss_{name}": value for name, value in (losses._asdict() | own).items()},
            "slot_spread": slot_spread(trace.memories[:, -1]),
            **trace.figures,
            "read_entropy": read_entropy,
            MISSED: missed_streams(answered.scores, batch.query),
        }
        return total, {name: value.detach() for name, value in logs.items()}


class RehearsalObjective:
    """L_rec and L_fam alone, on streams of which nothing is asked: fragments are chosen by chance."""

    def __init__(self, model: MemoryModel, settings: RehearsalSettings) -> None:
        self.whole = MemoryObjective(model, settings, RandomSampler())

    def __call__(self, batch: Batch) -> tuple[Tensor, Logs]:
        trace = self.whole.model.memorize(batch.stream)
        # every stream has one question to be rehearsed at its end, real or not
        asked = batch.query.each(lambda value: value[:, :1])
        asked = asked._replace(mask=torch.ones_like(asked.mask))
        query = rehearsed_question(asked, anytime=self.whole.settings.anytime)
        memory = gather_rows(trace.memories, query.position).squeeze(1)
        losses = Losses(trace.memories.new_zeros(()), *self.whole.rehearse(batch, query, memory))
        total = losses.total(self.whole.settings) + sum(trace.losses.values())
        logs = {"loss": total, "loss_recollection": losses.recollection, "loss_familiarity": losses.familiarity}
        return total, {name: value.detach() for name, value in logs.items()}


class DirectObjective:
    """Loss of a model that sees the whole stream: the history sampler in its own stage, or a direct method."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def compile(self, backend: str = "inductor") -> None:
        """What the model says is worth it; a plain recurrent network has kernels of its own, and the rest is small."""
        if isinstance(self.model, OwnLosses):
            self.model.compile_parts(backend)

    def __call__(self, batch: Batch) -> tuple[Tensor, Logs]:
        if not isinstance(self.model, OwnLosses):
            reason: DirectReasoner = self.model
            scores = reason(batch.stream, batch.query)
            loss = reason_loss(scores, batch.query)
            return loss, {"loss": loss.detach(), MISSED: missed_streams(scores, batch.query)}
        answers = self.model.answer_and_losses(batch.stream, batch.query)
        losses = {"reason": reason_loss(answers.scores, batch.query), **answers.losses}
        total = torch.stack(list(losses.values())).sum()
        logs = {"loss": total, **{f"loss_{name}": value for name, value in losses.items()}, **answers.figures}
        logs[MISSED] = missed_streams(answers.scores, batch.query)
        return total, {name: value.detach() for name, value in logs.items()}


def make_objective(
    model: nn.Module, settings: RehearsalSettings, sampler: Sampler | None
) -> MemoryObjective | DirectObjective:
    """What a model of any method is trained on."""
    return MemoryObjective(model, settings, sampler) if isinstance(model, MemoryModel) else DirectObjective(model)
