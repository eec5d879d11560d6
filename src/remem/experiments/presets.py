"""Every run with a name, `task/method`: one row of one table each. An ablation is one `replace`."""

from __future__ import annotations

from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from textwrap import fill

from remem.errors import BadInput
from remem.experiments.models import (
    PAPER,
    PAPER_CLICKS,
    PAPER_LONG,
    PAPER_VIDEO,
    RM,
    RM_CLICKS,
    RM_DELTA_CLICKS,
    RM_DELTA_VIDEO,
    RM_PASSAGE,
    RM_SHORT,
    RM_STORIES,
    RM_TEXT,
    RM_TURNS,
    RM_VIDEO,
    SMALL_SLOTS,
    small,
)
from remem.experiments.rivals import CLICK_READERS, TEXT_READERS, VIDEO_READERS, natives, readers, reduced, rivals
from remem.settings.model import (
    MachineSettings,
    ModelSettings,
    with_machine,
    without_rehearsal,
)
from remem.settings.run import Run, TrainSettings
from remem.settings.tasks import ActivityNetQATask, BabiTask, ClickTask, NarrativeQATask, SyntheticTask, Task

_SYNTHETIC = Run(
    method="rm-paper",
    task=SyntheticTask(),
    model=PAPER,
    train=TrainSettings(
        steps=10_000, batch_size=256, schedule="cosine", warmup_steps=1000, eval_every=1000, checkpoint_every=2000
    ),
    sampler_train=TrainSettings(steps=6000, batch_size=1024, eval_every=1000),
)

_BABI = Run(
    method="rm-paper",
    task=BabiTask(),
    model=PAPER,
    train=TrainSettings(
        steps=35_000,
        batch_size=128,
        schedule="cosine",
        warmup_steps=1000,
        eval_every=2500,
        checkpoint_every=2500,
    ),
    sampler_train=TrainSettings(steps=4000, batch_size=256, eval_every=1000),
)
# What `rm` and its rivals are trained on: stories told in other words each time, tasks not yet learned more often.
_STORIES = replace(
    _BABI,
    task=BabiTask(exchanges=64, questions=4),
    train=replace(_BABI.train, steps=26_000, focus=10.0, eval_every=1300, checkpoint_every=2600),
)


def _long(
    task: Task, model: ModelSettings, *, steps: int, batch_size: int, every: int,
    rate: float = 1e-3, warm_up: int = 200, weight_decay: float = 0.01,
) -> Run:  # fmt: skip
    # few streams are soon learned by heart, so a run ends four validations after its best
    train = TrainSettings(
        steps=steps, batch_size=batch_size, learning_rate=rate, schedule="cosine", warmup_steps=warm_up,
        weight_decay=weight_decay, eval_every=every, checkpoint_every=every, patience=4,
    )  # fmt: skip
    return Run(
        method="rm-paper",
        task=task,
        model=model,
        train=train,
        sampler_train=TrainSettings(steps=steps // 4, batch_size=batch_size, eval_every=every),
    )


# Names of new stories were never met: they are told apart by stand-ins, which mean something else each time.
_NARRATIVEQA = _long(
    NarrativeQATask(least_count=20, stand_ins=1000, exchanges=256), PAPER_LONG,
    steps=800, batch_size=16, every=50, warm_up=100, weight_decay=1.0,
)  # fmt: skip
_ACTIVITYNETQA = _long(
    ActivityNetQATask(), PAPER_VIDEO, steps=1500, batch_size=64, every=100, warm_up=100, weight_decay=1.0
)  # fmt: skip
# Few users, and one target a history teaches little: asked along it for several events, of which each step draws some;
# and batches that suit what reads item by item.
_CLICKS = [
    # the paper's own, so Adam as the paper has it
    _long(ClickTask(name="xlong"), PAPER_CLICKS, steps=5000, batch_size=128, every=250, weight_decay=0.0),
    _long(
        ClickTask(name="lastfm", along=4, ahead=4, questions=32), PAPER_CLICKS,
        steps=1000, batch_size=256, every=100, rate=2e-3, warm_up=80,
    ),
    _long(
        ClickTask(name="assistments", along=1, ahead=5, questions=32), PAPER_CLICKS,
        steps=600, batch_size=128, every=50, rate=2e-3, warm_up=80,
    ),
    _long(
        ClickTask(name="clicks", along=4, ahead=4, questions=32), PAPER_CLICKS,
        steps=5000, batch_size=128, every=250,
    ),
]  # fmt: skip

# The synthetic task at about half its sizes: one core of a CPU trains every method to the end of its plan in minutes.
_SHORT = Run(
    method="rm-paper",
    task=SyntheticTask(
        name="synthetic-short", num_groups=10, num_facts=200, stream_len=100, num_queries=10, num_answers=15,
        evidence_len=4, samples_per_chain=1000, eval_samples_per_chain=20, segment_len=10,
    ),
    model=small(PAPER, 48),
    train=TrainSettings(
        steps=3000, batch_size=32, learning_rate=4e-3, schedule="cosine", warmup_steps=300, eval_every=300,
        checkpoint_every=300,
    ),
    sampler_train=TrainSettings(steps=600, batch_size=256, learning_rate=2e-3, eval_every=300),
)  # fmt: skip

# The reduced task of `remem demo`, for two CPU cores: both rows learn it, as rehearsal is meant for longer streams.
DEMO = Run(
    method="rm",
    task=SyntheticTask(
        name="synthetic-demo",
        num_groups=4,
        num_facts=96,
        stream_len=40,
        num_queries=4,
        num_answers=4,
        evidence_len=3,
        samples_per_chain=1600,
        eval_samples_per_chain=50,
        segment_len=10,
    ),
    model=small(RM, 48),
    train=TrainSettings(steps=1000, batch_size=32, learning_rate=2e-3, schedule="cosine", eval_every=250),
    sampler_train=TrainSettings(steps=300, batch_size=256, learning_rate=2e-3, eval_every=150),
)


def family(paper: Run, model: ModelSettings, ours: Run | None = None) -> list[Run]:
    """`rm-paper`, `rm`, and the ablations of what and whether to rehearse (Tables 5 and 6); all trained as the paper's
    unless `ours` says how."""
    run = ours or paper

    def row(method: str, **changes: object) -> Run:
        return replace(run, method=method, model=replace(model, rehearsal=replace(model.rehearsal, **changes)))  # type: ignore[arg-type]

    chance = model.rehearsal.sampler == "random"
    gru = isinstance(model.machine, MachineSettings) and model.machine.encoder == "gru"
    other = "transformer" if gru else "gru"
    return [
        paper,
        replace(run, method="rm", model=model),
        replace(run, method="rm-no-rehearsal", model=without_rehearsal(model)),
        row("rm-history-sampler", sampler="history") if chance else row("rm-random-sampler", sampler="random"),
        row("rm-only-recollection", familiarity_weight=0.0),
        row("rm-only-familiarity", recollection_weight=0.0),
        row("rm-mask-15", mask_ratio=0.15),
        replace(run, method=f"rm-{other}-encoder", model=with_machine(model, encoder=other)),
    ]


def _stories() -> list[Run]:
    """bAbI before and after: `rm` with what short stories need alone; `rm` trained on, the hardest task first, and once
    more; `rm-led`, which begins with that task, and whose memory takes words as they are, mixed by a GRU; `rm-staged`,
    where five more follow before all do, and whose slots start to keep; that trained on, with all tasks; in place of
    both `rm-staged-long`, one longer run in which long stories come as often as short ones and the rate goes down to
    nothing; `rm-staged` trained on so by its answers alone, with nothing rehearsed any more, and stories that were
    missed more often than others; and `rm-recent`, one run of an hour on one core of a CPU: the last ten sentences are
    kept as they are beside ten slots, rows look at others that are like them, and stories ask questions by themselves
    instead of being rehearsed, so that no task leads; the end of it, too, is answers alone."""
    lead = replace(_STORIES.train, steps=18_200, warmup_steps=500, lead=("qa16",), lead_steps=3900)
    again = replace(lead, steps=14_300, lead_steps=7800, lead_until=10.0)
    first = replace(
        again, steps=39_000, warmup_steps=_STORIES.train.warmup_steps, lead_steps=5200, lead_tries=3, lead_stays=True
    )

    def trained_on(weights: str | None) -> ModelSettings:
        rehearsal = replace(RM_STORIES.rehearsal, per_stream=True)
        return replace(RM_STORIES, weights_from=Path(weights) if weights else None, rehearsal=rehearsal)

    binding = with_machine(trained_on(None), encoder="gru", copy_start=True)
    keeping = with_machine(binding, keep_bias=1.0)
    asking = with_machine(without_rehearsal(keeping), recent=10)
    asking = replace(
        asking, reasoner=replace(asking.reasoner, slot_layers=3, match_rows=True, question="sum"),
        rehearsal=replace(asking.rehearsal, ask_weight=1.0, asks=2),
    )  # fmt: skip
    staged = replace(first, lead=("qa16", "qa1+qa2+qa15+qa17+qa19"))
    long = replace(staged, steps=52_000, focus_brevity=0.0, last_rate=0.0)
    on = replace(staged, steps=15_600, warmup_steps=500, lead=("qa16",), lead_steps=0, lead_tries=1)
    return [
        replace(_BABI, method="rm-plain", model=RM_TEXT),
        replace(_STORIES, method="rm-continued", model=trained_on("runs/babi-rm-s0"), train=lead),
        replace(_STORIES, method="rm-continued-again", model=trained_on("runs/babi-rm-continued-s0"), train=again),
        replace(_STORIES, method="rm-led", model=binding, train=first),
        replace(_STORIES, method="rm-staged", model=keeping, train=staged),
        replace(_STORIES, method="rm-staged-long", model=keeping, train=long),
        replace(
            _STORIES, method="rm-recent", task=BabiTask(exchanges=512, questions=4), model=asking,
            train=replace(
                _STORIES.train, steps=16_000, batch_size=32, warmup_steps=500, focus_streams=10.0, last_rate=0.0,
                rehearse_for=12_000, eval_every=1000, checkpoint_every=1000,
                lead_steps=5000, lead_until=10.0,  # of a lead, where one is named
            ),
        ),
        replace(
            _STORIES, method="rm-staged-continued",
            model=replace(keeping, weights_from=Path("runs/babi-rm-staged-s0")),
            train=on,
        ),
        replace(
            _STORIES, method="rm-staged-answers",
            model=replace(without_rehearsal(keeping), weights_from=Path("runs/babi-rm-staged-s0")),
            train=replace(
                on, steps=20_800, lead=(), lead_stays=False, focus_brevity=0.0, focus_streams=10.0, last_rate=0.0,
                eval_every=2600,
            ),
        ),
    ]  # fmt: skip


def _pretrained(paper: Run, model: ModelSettings, steps: int) -> Run:
    """`rm` that has rehearsed the streams without questions first."""
    pretrain = replace(paper.train, steps=steps, warmup_steps=steps // 10)
    return replace(paper, method="rm-pretrained", model=model, pretrain=pretrain)


def _delta(paper: Run, model: ModelSettings) -> list[Run]:
    """Slots that take what they lack, with and without rehearsal."""
    plain = without_rehearsal(model)
    return [
        replace(paper, method="rm-delta", model=model),
        replace(paper, method="rm-delta-no-rehearsal", model=plain),
    ]


PRESETS: dict[str, Run] = {
    f"{run.task.name}/{run.method}": run
    for run in (
        *family(_SYNTHETIC, RM), *rivals(_SYNTHETIC, RM),
        *family(_SHORT, RM_SHORT), *rivals(_SHORT, RM_SHORT, reduced(SMALL_SLOTS, 48)),
        *family(_BABI, RM_STORIES, _STORIES), *_stories(), *rivals(_STORIES, RM_STORIES), *natives(_BABI),
        *family(_NARRATIVEQA, RM_PASSAGE), *rivals(_NARRATIVEQA, RM_PASSAGE),
        *readers(_NARRATIVEQA, RM_PASSAGE, TEXT_READERS), _pretrained(_NARRATIVEQA, RM_PASSAGE, steps=1000),
        replace(_NARRATIVEQA, method="rm-turns", model=RM_TURNS),
        replace(_NARRATIVEQA, method="rm-turns-no-rehearsal", model=without_rehearsal(RM_TURNS)),
        *family(_ACTIVITYNETQA, RM_VIDEO), *rivals(_ACTIVITYNETQA, RM_VIDEO),
        *readers(_ACTIVITYNETQA, RM_VIDEO, VIDEO_READERS),
        *(run for clicks in _CLICKS for run in (*family(clicks, RM_CLICKS), *rivals(clicks, RM_CLICKS))),
        *(run for clicks in _CLICKS for run in readers(clicks, RM_CLICKS, CLICK_READERS)),
        *(run for clicks in _CLICKS for run in _delta(clicks, RM_DELTA_CLICKS)),
        *_delta(_ACTIVITYNETQA, RM_DELTA_VIDEO),
    )
}  # fmt: skip


def find_preset(name: str) -> Run:
    """The preset of a name; an unknown one is answered with those that are most like it."""
    if name not in PRESETS:
        near = get_close_matches(name, PRESETS, n=3, cutoff=0.0)
        raise BadInput(f"{name!r} is no preset. Nearest: {', '.join(near)}; `remem train --help` lists them all.")
    return PRESETS[name]


def list_presets() -> str:
    """All presets, a line a task: first the methods that every task has, then what each has besides."""
    methods: dict[str, list[str]] = {}
    for name in PRESETS:
        task, method = name.split("/")
        methods.setdefault(task, []).append(method)
    shared = [method for method in next(iter(methods.values())) if all(method in own for own in methods.values())]
    lines = {"all tasks": shared} | {task: [m for m in own if m not in shared] for task, own in methods.items()}
    width = max(map(len, lines)) + 2
    return "\n".join(
        fill(
            ", ".join(own) or "no others",
            112,
            initial_indent=f"  {task:<{width}}",
            subsequent_indent=" " * (width + 2),
            break_on_hyphens=False,
        )
        for task, own in lines.items()
    )
