"""The game: its words, the marks of a guess, and the state of one game."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from environments.rewards.text_format import tagged
from tools.calls import State

WORDS: tuple[str, ...] = tuple(
    """
    robot score clerk radio river chess torch climb robin award lemon bench truth rider shelf scout blind
    brand awful break judge exact under color merit class along forge trunk diner space upper pizza actor
    coach tulip scale guard sheep thief straw chest bride movie woven paint sword lever wrist pedal orbit
    magic party curve inner brave raise blade oasis crowd jewel proof blame error dodge small press spear
    music spare tiger sport visit harsh creek crack dream valid album beast focus grade wider brush lucky
    pearl crown spice apron board cloth novel power apple march slate below smell peach treat shirt widow
    wheel eight angel doubt table waist bloom mayor roast maple order stack vivid toast round floor local
    flood token cheer alert fable clean broom grill cloak point mouth vocal logic black light cargo couch
    thing ocean shore glory sauce coral empty block flock limit grass cover topic label sugar polar tribe
    shout outer cobra smile shine horse speed beach laugh mango humor comet forum quite other queen uncle
    proud joint spend plaza sunny waste towel elbow cross glove rural medal flour fresh berry marsh stair
    reply theme thank fluid brown piano crust purse train sweet index alive worry bread clown slope enemy
    basil alarm greet pilot wagon stone candy minor trail royal brick crash camel zebra toxic vapor drama
    rapid grace chime quick timer court scene crane shape close clock chief patch photo great early hobby
    moral month drink happy nerve cedar total child smart truck group fruit chase study drift beard major
    print story float carry north heavy touch level taste salad faith slide quilt solid speak blend motor
    skirt lunch brake otter voice sharp loose about flame share whole begin flint often heart ghost spark
    pasta civil shoal spoon stool booth broad bacon chain worth hello arena merry cloud price green plane
    catch storm amber cycle lodge dress staff knife peace charm giant skill diary honey snake clash chair
    learn reach knock ruler pitch guess chart fairy unite shade offer panel faint trace olive ivory donor
    hatch quest elder seven youth hinge villa maybe prize onion smoke ready vital house depth paper water
    union sleep angle trend melon piece fancy basin fence jelly llama kneel daily ideal blank thumb essay
    white urban check least fleet brain snack title hedge trick dairy honor slice pride short human raven
    large ridge track guide build draft stick basic sight final grape chalk bonus funny teach noble trade
    lunar prime trial south equal woman route shark nurse badge burst globe opera habit stage steam metal
    pulse count anger frame ledge model birth aside pouch cause hotel drive phone trust cable niece birch
    spell tooth drill earth penny eager blaze linen place daisy stamp cabin ferry mount wrong event cliff
    blast where ankle drain skate fifty rough relax think mercy boost steel rebel crawl later sound false
    kayak extra haste scent stand craft quiet brass claim never cheek plant arrow guest again sheet usual
    flash field young right lobby alike found shell feast query stove alone world thick crisp yacht cheap
    plain store tower fight noise swing mouse plate nanny bring pause after money owner brief layer dozen
    value shake pound armor meter ranch flute watch frost force night match enter enjoy grain glass agent
    above crumb cream solar dance bunch easel refer fever loyal scarf grand aloud write clear while radar
    image still puppy coast eagle boast input start baker video porch juice
    """.split()  # noqa: SIM905  # a list would take a line per word
)
"""In random order, so that the first ones are a fair sample."""

LETTERS = 5
RIGHT = "g" * LETTERS
_SHOWN = re.compile(r"((?:[a-z] ){4}[a-z])\n((?:[gy-] ){4}[gy-])\n")


def marks_of(guess: str, answer: str) -> str:
    """Mark each letter of a guess: `g` in place, `y` elsewhere in the answer, `-` not in it.

    A letter gets as many marks as the answer has of it: first those in place, then from left to right.
    """
    pairs = list(zip(guess, answer, strict=True))
    left = [right for letter, right in pairs if letter != right]
    marks = ""
    for letter, right in pairs:
        if letter == right:
            marks += "g"
        elif letter in left:
            left.remove(letter)
            marks += "y"
        else:
            marks += "-"
    return marks


def filter_words(words: Iterable[str], guess: str, marks: str) -> tuple[str, ...]:
    """Return the words that would get these marks for this guess."""
    return tuple(word for word in words if marks_of(guess, word) == marks)


def parse_guess(text: str) -> str | None:
    """Return the guess in the last `<guess>…</guess>` of a message, or in all of it; None without one.

    White space, case and a full stop are ignored; five letters from a to z must remain.
    """
    marked = tagged(text, "guess")
    word = (text if marked is None else marked).strip().removesuffix(".")
    return word.lower() if len(word) == LETTERS and word.isascii() and word.isalpha() else None


def format_marks(guess: str, marks: str) -> str:
    """Return a guess and its marks with spaces, so that a tokenizer sees each letter."""
    return f"{' '.join(guess)}\n{' '.join(marks)}\n"


def parse_marks(text: str) -> tuple[str, str] | None:
    """Return the guess and the marks in a reply of the game, or None."""
    found = _SHOWN.match(text)
    return None if found is None else (found[1].replace(" ", ""), found[2].replace(" ", ""))


@dataclass(slots=True, kw_only=True)
class Game(State):
    """The state of one game."""

    answer: str
    candidates: tuple[str, ...]
    """Words that fit all marks so far."""
    all_candidates: int
    turns: int = 0
    facts: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    """Pairs of a guess and its marks."""

    @classmethod
    def begin(cls, answer: str) -> "Game":
        words = WORDS if answer in WORDS else (*WORDS, answer)
        return cls(answer=answer, candidates=words, all_candidates=len(words))

    def guess(self, word: str) -> str:
        """Return the marks of a guess, and keep the candidates that fit them."""
        marks = marks_of(word, self.answer)
        self.candidates = filter_words(self.candidates, word, marks)
        self.facts.add((word, marks))
        return marks

    @property
    def information(self) -> float:
        """Share of the initial uncertainty, in bits, that is gone."""
        return 1.0 - math.log(len(self.candidates)) / math.log(self.all_candidates)

    @property
    def is_solved(self) -> bool:
        return (self.answer, RIGHT) in self.facts
