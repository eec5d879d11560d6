"""The forms of bodies, for checking them and for the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from remem.service.limits import LAST_SEQ, NAME

NAME_PATTERN = f"^{NAME.pattern}$"
Name = Annotated[str, Field(pattern=NAME_PATTERN, max_length=256, examples=["user-42"])]
Seq = Annotated[int, Field(ge=0, le=LAST_SEQ)]
Seconds = Annotated[float, Field(gt=0, le=100 * 366 * 86_400)]
Candidate = Annotated[str, Field(min_length=1)] | int
# of a list the first fault is enough: a body may hold hundreds of thousands
Item = Annotated[str, Field(min_length=1)] | int | Annotated[list[float], Field(min_length=1, fail_fast=True)]


class Form(BaseModel):
    """Strict: no field unknown, no text for a number."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class EventForm(Form):
    """An item, and whether it ends its segment; without an item it only ends the segment."""

    item: Item | None = None
    ends_segment: bool = False


class AppendForm(Form):
    """Events, bare items or with a mark, and the number of the first."""

    events: Annotated[list[EventForm | Item], Field(min_length=1, max_length=1000, fail_fast=True)]
    seq: Seq | None = None


class QueryForm(Form):
    """A question to one memory."""

    question: JsonValue
    candidates: Annotated[list[Candidate], Field(min_length=1, max_length=1000, fail_fast=True)] | None = None
    """For a model that chooses among answers."""
    top: Annotated[int, Field(ge=1, le=1000)] = 5
    tail: Literal["include", "exclude"] = "include"
    min_seq: Seq | None = None
    timeout_ms: Annotated[int, Field(ge=1, le=60_000)] | None = None

    def asked(self) -> Any:
        """The question as the model takes it."""
        if self.candidates is None:
            return self.question
        return {"question": self.question, "candidates": self.candidates}


class StreamQuery(QueryForm):
    """A question to the memory of the stream named."""

    stream: Name


class ManyQueriesForm(Form):
    """Questions to several memories, answered each for itself."""

    queries: Annotated[list[StreamQuery], Field(min_length=1, max_length=256, fail_fast=True)]


class CreateForm(Form):
    """How a stream shall keep its events, and how many seconds it lives after the last of them."""

    retention: Literal["tail", "all"] | None = None
    ttl: Seconds | None = None


class LifeForm(Form):
    """How many seconds a stream lives after its last event; null for ever."""

    ttl: Seconds | None


class FlushForm(Form):
    """The number of the mark that ends the segment."""

    seq: Seq | None = None


class SnapshotForm(Form):
    """A copy's name."""

    name: Name


class RebuildForm(Form):
    """All events from number 0 on; without them those that the stream retained."""

    events: Annotated[list[EventForm | Item], Field(max_length=1000, fail_fast=True)] | None = None


class Created(BaseModel):
    """Whether the stream is new."""

    created: bool


class BackedUp(BaseModel):
    """The copy, in the server's folder for them."""

    file: str
    bytes: int


class AnsweredOne(BaseModel):
    """An answer, or the problem that stood against it."""

    stream: str
    answered: dict[str, Any] | None = None
    problem: dict[str, Any] | None = None


class AnsweredMany(BaseModel):
    """In the order of the questions."""

    results: list[AnsweredOne]


class ModelInfo(BaseModel):
    """The model that is loaded."""

    fingerprint: str
    numerics: str
    segment_events: int
    items: Literal["text", "passage", "ids", "clicks", "frames", "vectors", "other"]


class Models(BaseModel):
    """A server has one."""

    models: list[ModelInfo]


class ProblemForm(BaseModel):
    """RFC 9457, with a code that never changes."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    code: str
    detail: str
    request: str
