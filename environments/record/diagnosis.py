"""Counted causes why groups cannot be trained on, each with a remedy."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from environments.credit.crediting import UNSCORED, UNTRAINED
from environments.trajectory import CreditedGroup
from tools.plain_text import PLACE_OF_ITEM, count_noun

REFUSED, BROKEN, STALE = "refused", "broken", "too old"
UNSCORED_KIND, ALIKE, NO_CREDIT_KIND = "unscored", "all alike", "no credit"
_ERROR_CHARS = 160
_SHOWN_CAUSES = 3
_LOOK = "the groups say more in `turnwise view RECORD`"

_OF_SIBLINGS = re.compile(r"^sibling \d+: |: siblings [\d, ]+(?=;)|; missing_outcome says .*$")
_PLACED = re.compile(r"^((?:[\w ]+ broke: )?\w+)\b.*( \([^()]+:\d+ in [^()]+\))$", re.DOTALL)
"""An error of user code, identified by class and place."""
_NUMBER = re.compile(r"(?<![\w.:/-])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w.])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    kind: str
    """`refused`, `unscored`, `all alike`, `broken` (too few rollouts survived), `too old`, or `no credit`."""
    why: str
    groups: int = 1

    def __str__(self) -> str:
        return f"{self.kind}: {self.why}"

    @property
    def remedy(self) -> str:
        return next((what for words, what in _BY_WORDS.items() if words in self.why), _BY_KIND[self.kind])


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    groups: int
    with_credit: int
    causes: tuple[Cause, ...]

    @property
    def is_nothing(self) -> bool:
        return self.groups > 0 == self.with_credit

    @property
    def sentence(self) -> str:
        if not self.groups:
            return ""
        several = count_noun(self.groups, "group")
        head = f"nothing to learn from in {several}"
        if self.with_credit:
            head = f"{self.with_credit:,} of {several} can be learned from"
        shown = [f"{each.groups:,} {each.kind} ({each.why})" for each in self.causes[:_SHOWN_CAUSES]]
        more = len(self.causes) - _SHOWN_CAUSES
        shown += [f"{more} more causes"] if more > 0 else []
        return f"{head}: {', '.join(shown)}" if shown else head

    @property
    def remedy(self) -> str:
        return self.causes[0].remedy if self.causes else ""

    def __str__(self) -> str:
        return f"{self.sentence}; {self.remedy}" if self.remedy else self.sentence


def diagnosis(groups: Iterable[CreditedGroup]) -> Diagnosis:
    return diagnosis_by(Counter(cause_of(each) for each in groups if not each.group.is_evaluation))


def diagnosis_of(numbers: Mapping[str, Any]) -> Diagnosis:
    parted = [(text.partition(": "), count) for text, count in numbers["reasons"].items()]
    causes = {Cause(kind=kind, why=why): count for (kind, _, why), count in parted if kind in _BY_KIND}
    return diagnosis_by({None: numbers["groups"].get("ok", 0), **causes})


def diagnosis_by(causes: Mapping[Cause | None, int]) -> Diagnosis:
    """Diagnose groups counted by cause; None stands for groups with credit."""
    most = sorted(causes.items(), key=lambda each: (-each[1], str(each[0])))
    return Diagnosis(
        groups=sum(causes.values()),
        with_credit=causes.get(None, 0),
        causes=tuple(replace(cause, groups=count) for cause, count in most if cause is not None),
    )


def cause_of(credited: CreditedGroup) -> Cause | None:
    """Return why a group cannot be trained on; None if it can, or belongs to an evaluation."""
    group, reason = credited.group, credited.reason or ""
    if credited.status == "ok" or group.is_evaluation:
        return None
    if credited.status == "failed":
        is_short = not group.trajectories or (group.error is None and " rollouts survived, at " in reason)
        if not is_short or any(each.refuses_group for each in group.failures):
            return Cause(kind=REFUSED, why=_refusal(reason))
        texts = Counter(each.kind for each in group.failures).most_common(1)
        return Cause(kind=BROKEN, why=texts[0][0] if texts else _refusal(reason))
    if group.stale is not None:
        return Cause(kind=STALE, why="newer weights than --env.max_staleness permits were met")
    if reason == UNSCORED:
        return Cause(kind=UNSCORED_KIND, why=UNSCORED)
    if reason == UNTRAINED:
        return Cause(kind=NO_CREDIT_KIND, why=reason)
    if len(group.trajectories) == 1:
        is_logged = group.trajectories[0].session_id is not None
        return Cause(kind=NO_CREDIT_KIND, why=_ALONE_IN_LOG if is_logged else _ALONE)
    earned = {
        (tuple(filter(None, each.act_rewards or ())), each.rewards and each.rewards.outcome, each.score)
        for each in group.trajectories
    }
    if len(earned) == 1:
        return Cause(kind=ALIKE, why="every sibling earned the same")
    return Cause(kind=NO_CREDIT_KIND, why=f"rewards differ, and {credited.estimator} sees no difference")


def _refusal(reason: str) -> str:
    """Return a refusal's reason without siblings and numbers, which differ in each group."""
    text = " ".join(_OF_SIBLINGS.sub("", reason).split())
    if placed := _PLACED.match(text):
        return f"{placed[1]}{placed[2]}"
    text = re.sub(
        rf"^((?:[\w ]+: )*){PLACE_OF_ITEM}", r"\1", text.replace(" (score_group was not asked)", "")
    )
    return _NUMBER.sub("N", text)[:_ERROR_CHARS] or "no reason is known"


_BY_KIND = {
    REFUSED: f"mend what it names; {_LOOK}",
    UNSCORED_KIND: "hooks of rewards gave None for everything: too hard for this policy, or is a `return` "
    "missing?",
    ALIKE: "take items that are neither too easy nor too hard for this policy, more siblings "
    "(--env.group_size) or a more detailed reward",
    BROKEN: "once the cause is gone, the same command tries these groups again",
    STALE: "permit older weights (--env.max_staleness), or have fewer rollouts in flight "
    "(--env.max_concurrent_rollouts)",
    NO_CREDIT_KIND: "take an estimator that sees it (--env.estimator; `turnwise credit` lists them)",
}
_SAY_WHAT_COUNTS = (
    "give every sibling one, or say with missing_outcome (--env.missing_outcome; for what is recorded, "
    "`turnwise credit RECORD --estimator NAME --missing-outcome WHAT --write OUT`) what is to count, drop or "
    "a number"
)
_ALONE, _ALONE_IN_LOG = "a single rollout is compared with nothing", "no other session has its opening"
_BY_WORDS = {
    " beside siblings with ": _SAY_WHAT_COUNTS,
    "ctx.judge(": "state what an unreadable verdict counts, ctx.judge(…, unparsable=…)",
    "trajectory.acts": "give one entry for each of trajectory.acts, which has no summaries",
    UNTRAINED: "let train_turn give True for some turns, leave out --env.mask_truncated, or use "
    "--openai.constraints ask",
    _ALONE_IN_LOG: "give it peers with an equal opening, or import with --baseline none",
    _ALONE: "take more siblings, --env.group_size 4 or more",
}
