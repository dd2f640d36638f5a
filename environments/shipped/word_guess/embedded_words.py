"""The embedded words, and the marks for each letter of a guess, as shown and as read back."""

import re
from collections.abc import Iterable

from environments.rewards.text_format import tagged

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
"""In no order, so that the first ones are like the others."""


LETTERS = 5
RIGHT = "g" * LETTERS
_SHOWN = re.compile(r"((?:[a-z] ){4}[a-z])\n((?:[gy-] ){4}[gy-])\n")


def marks_of(guess: str, answer: str) -> str:
    """`g` where the letter is in place, `y` where it is elsewhere, `-` where the answer has no more of it.

    A letter is marked as often as the answer has it: those in place first, then from left to right.
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


def agreeing(words: Iterable[str], guess: str, marks: str) -> tuple[str, ...]:
    return tuple(word for word in words if marks_of(guess, word) == marks)


def guess_in(text: str) -> str | None:
    """The guess that a message makes: what its last `<guess>…</guess>` holds, or else all of it.

    White space, case and a full stop do not matter; what is then not five letters from a to z is no guess.
    """
    marked = tagged(text, "guess")
    word = (text if marked is None else marked).strip().removesuffix(".")
    return word.lower() if len(word) == LETTERS and word.isascii() and word.isalpha() else None


def shown(guess: str, marks: str) -> str:
    """A guess and its marks, a letter apart, so that a tokenizer sees each one."""
    return f"{' '.join(guess)}\n{' '.join(marks)}\n"


def marks_shown(text: str) -> tuple[str, str] | None:
    """The guess and the marks that a reply of the game shows; `None` when it shows none."""
    found = _SHOWN.match(text)
    return None if found is None else (found[1].replace(" ", ""), found[2].replace(" ", ""))
