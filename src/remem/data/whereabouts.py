"""Stories of who is where, as long as one likes, in the words of bAbI's first task and from none of its files.

Everybody moves about; then one person goes somewhere, and from then on only the others move. Where is that person?
"""

from __future__ import annotations

from remem.data.babi import TaskStories, as_split
from remem.data.babi_format import Question, Story, Words
from remem.data.codec import TextCodec
from remem.data.dataset import Split
from remem.data.random import StableRandom
from remem.errors import BadInput

PEOPLE = ("mary", "john", "sandra", "daniel")
PLACES = ("bathroom", "bedroom", "garden", "hallway", "kitchen", "office")
WAYS = (("moved", "to"), ("went", "to"), ("journeyed", "to"), ("travelled", "to"), ("went", "back", "to"))
_LEADS = (2, 9)  # sentences before the one that is asked for: at least, and at most


def split_beyond(codec: TextCodec, beyond: int, count: int, seed: int = 0) -> Split:
    """So many stories, each asked after `beyond` sentences that tell nothing of the person it is asked about."""
    needed = {"where", "is", "the", *PEOPLE, *PLACES, *(word for way in WAYS for word in way)}
    missing = sorted(needed - set(codec.words)) + sorted(set(PLACES) - set(codec.answers))
    if missing:
        raise BadInput(
            f"This model does not know {missing[0]!r}, which stories of who is where are told with; "
            "take one that was trained on bAbI's first task."
        )
    stories = [tell(StableRandom(seed, "whereabouts", beyond, i), beyond) for i in range(count)]
    return as_split([TaskStories(1, stories)], codec)


def tell(random: StableRandom, beyond: int) -> Story:
    """One story with its question."""
    draws = iter(random.words(4 + 3 * (_LEADS[1] + 1 + beyond)).tolist())

    def pick(among: tuple[str, ...]) -> str:
        return among[next(draws) % len(among)]

    where: dict[str, str] = {}
    sentences: list[Words] = []

    def move(person: str) -> None:
        where[person] = pick(tuple(place for place in PLACES if place != where.get(person)))
        sentences.append((person, *WAYS[next(draws) % len(WAYS)], "the", where[person]))

    for _ in range(_LEADS[0] + next(draws) % (_LEADS[1] - _LEADS[0] + 1)):
        move(pick(PEOPLE))
    asked = pick(PEOPLE)
    move(asked)
    evidence = len(sentences) - 1
    for _ in range(beyond):
        move(pick(tuple(person for person in PEOPLE if person != asked)))
    return Story(tuple(sentences), (Question(("where", "is", asked), where[asked], len(sentences), evidence),))
