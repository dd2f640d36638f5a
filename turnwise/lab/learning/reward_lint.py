"""What the rewards of an environment teach: whether they are learnable, and which of them are gamed."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any

from environments.base_env import AgentEnv
from environments.config import AgentEnvConfig
from environments.policy.base import Policy
from environments.policy.rendering.chatml import ChatMLRenderer
from environments.policy.scripted import PlaysByScript, Script, ScriptedPolicy
from environments.record.diagnosis import Cause, diagnosis_by
from environments.record.private_file import folder_for
from environments.record.run_folder import RunFolder
from environments.rollout.hooks import writes
from tools.errors import ConfigError
from turnwise.lab.learning.arms import (
    RESULT,
    Arm,
    LearnedArm,
    LearnFolder,
    LearningSetup,
    MakeEnv,
    Measurement,
    Say,
    compare_arms,
    opened_folder,
    recorded,
)
from turnwise.lab.learning.gamed_rewards import free_habits, part_verdicts
from turnwise.lab.learning.rollout_numbers import (
    OUTCOME,
    PART,
    PASSED,
    SCORE,
    TOKENS,
    TURNS,
    Change,
    Numbers,
    Played,
    changes,
)
from turnwise.viewer.learning_values import (
    LearnedChange,
    LearnedPart,
    LearnedRollouts,
    LearnedVerdict,
    LearningValues,
)
from turnwise.viewer.page_values import PageContent, TextCutter, TokenTexts
from turnwise.viewer.record_page import IndexBuilder, PageFile, text_of

PAGE = "learning.html"
REFERENCE = "scripted agent at skill 1"
GROUPS_A_STEP = 2
_FEW = 0.5
"""Share of choices in states that were met before, below which a table learns little."""
_FLAGGED = ("gamed", "suspect", "on the way")
_QUIET = {
    "no outcome": "rose; the environment has no outcome to hold that against",
    "with the outcome": "rose with the outcome: not gamed here",
    "not learned": "did not clearly rise",
}
_MAX_TEXT = 20_000
_MAX_BYTES = 200_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is played."""

    seeds: int
    steps: int
    items: int
    """That are played by the reference, by the first policy and the last, and in turn while learning."""

    @property
    def groups(self) -> int:
        """To roll out."""
        return self.items * (1 + 2 * self.seeds) + GROUPS_A_STEP * self.seeds * self.steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the user wants of a plan; `None`: what fits."""

    seconds: float
    seeds: int | None = None
    steps: int | None = None


_PLANS = ((3, 25, 8), (3, 20, 8), (3, 15, 6), (2, 15, 6), (2, 10, 4), (2, 6, 4))
"""Seeds, steps and items, the largest first."""
_MOST_ITEMS = _PLANS[0][2]
_HOPE = 1.4
"""First groups are slower than later ones; where they are not, the last steps are left out."""


def plan_within(asked: Asked, *, group_s: float, items: int) -> Plan:
    """The largest plan that takes no longer than asked.

    Args:
        asked: seconds, and what is fixed.
        group_s: seconds that a group takes here.
        items: how many there are.

    Raises:
        ConfigError: not even the smallest fits.
    """
    plans = [
        Plan(
            seeds=asked.seeds or seeds,
            steps=steps if asked.steps is None else asked.steps,
            items=min(items, most_items),
        )
        for seeds, steps, most_items in _PLANS
    ]
    for plan in plans:
        if plan.groups * group_s <= _HOPE * asked.seconds:
            return plan
    plan, needed = plans[-1], plans[-1].groups * group_s
    raise ConfigError(
        f"a group takes about {group_s:.2g} s here, so that {plan.seeds} seeds of {plan.steps} steps take "
        f"some {needed:.0f} s, and {asked.seconds:g} s are given; give --seconds "
        f"{int(needed * 1.2 // 10 + 1) * 10}, or fewer --steps or --seeds"
    )


class FlawlessScript(PlaysByScript):
    """The scripted agent at skill 1, whatever skill the choices are taken at."""

    def __init__(self, renderer: ChatMLRenderer) -> None:
        """Play with this renderer."""
        self._renderer = renderer

    @property
    def name(self) -> str:
        """What the record calls it."""
        return REFERENCE

    def playing_by_script(self, script: Script, summary: Script, skill: float) -> Policy:
        """The policy of one rollout."""
        return ScriptedPolicy(script, skill=1.0, renderer=self._renderer, summary=summary)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """What was measured of an environment."""

    env: AgentEnv
    """Closed."""
    arm: Arm
    plan: Plan
    reference: Measurement
    learned: Sequence[LearnedArm]
    """By seed."""
    lost: Counter[str]
    survived: int
    seconds: float

    @property
    def steps(self) -> int:
        """That every seed took; fewer than planned where the time was over."""
        return min(each.curve[-1].step for each in self.learned)

    @property
    def starts(self) -> Played:
        """By the first policy."""
        return [each.start.numbers for each in self.learned]

    @property
    def ends(self) -> Played:
        """By the learned one."""
        return [each.end.numbers for each in self.learned]

    @property
    def references(self) -> Played:
        """By the scripted agent: the same for each seed."""
        return [self.reference.numbers] * len(self.learned)

    @property
    def knows_the_task(self) -> bool:
        """Whether the reference is clearly better than chance, so that what it does is a measure.

        By the outcome, where there is one: a reward that is gamed is in the score.
        """
        beyond_chance = changes(self.starts, self.references)
        better = beyond_chance.get(OUTCOME) or beyond_chance.get(SCORE)
        return better is not None and better.direction == "up"


async def lint_rewards(
    make_env: MakeEnv,
    config: AgentEnvConfig,
    *,
    asked: Asked,
    learning_rate: float,
    folder: Path,
    say: Say,
) -> LearningValues:
    """Let a policy learn by the environment's own estimator, and judge what changed.

    Args:
        make_env: makes the environment, once for each policy.
        config: its settings.
        asked: how long.
        learning_rate: Adam's.
        folder: for records, values and page; a former one is put aside.
        say: shows a line.

    Raises:
        UsageError: the environment cannot be opened or has nothing to choose, or the time is too short.
        RunError: its rollouts break.
    """
    started = monotonic()
    env = make_env(config, policy=FlawlessScript(ChatMLRenderer.load(config.tokenizer_name)))
    name, params = env.estimator, env.lifecycle.parts.estimator_params
    arm = Arm(name=name, estimator=name, params=params, learning_rate=learning_rate)
    with ExitStack() as stack:
        opened = stack.enter_context(opened_folder(folder, say))
        run = RunFolder(folder / "reference")
        async with recorded(env, run, learning=REFERENCE, planned=_MOST_ITEMS) as recording:
            tasks = env.tasks()
            began = monotonic()
            reference = await recording.measured(tasks[:_MOST_ITEMS], "the reference")
            group_s = (monotonic() - began) / len(reference.groups)
            plan = plan_within(asked, group_s=group_s, items=len(tasks))
            say(
                f"{env.name}, {arm.name}: {plan.seeds} seeds, {plan.steps} steps of {GROUPS_A_STEP} groups "
                f"of {config.group_size}, {plan.items} items: {plan.groups:,} groups, at most "
                f"{asked.seconds:g} s"
            )
        setup = LearningSetup(
            make_env=make_env,
            config=config.model_copy(update={"max_items": plan.items}),
            groups=GROUPS_A_STEP,
            cap=plan.steps,
            seconds=max(0.0, asked.seconds - (monotonic() - started)) / plan.seeds,
            is_measured=True,
        )
        seeds = range(config.seed, config.seed + plan.seeds)
        learned = (await compare_arms(setup, [arm], seeds, folder=opened, say=say)).ended[arm.name]
        lesson = Lesson(
            env=env,
            arm=arm,
            plan=plan,
            reference=reference,
            learned=learned,
            lost=sum((each.lost for each in learned), Counter(recording.lost)),
            survived=sum((each.survived for each in learned), recording.survived),
            seconds=monotonic() - started,
        )
        values = learning_values(lesson)
        opened.write(RESULT, json.dumps(values, indent=1, ensure_ascii=False))
        write_page(opened, values, lesson)
    return values


def learning_values(lesson: Lesson) -> LearningValues:
    """Returns the values of the page, without its rollouts."""
    learned = changes(lesson.starts, lesson.ends)
    beyond = changes(lesson.references, lesson.ends)
    parts = part_verdicts(lesson.starts, lesson.ends, lesson.references if lesson.knows_the_task else None)
    free = free_habits(learned, beyond) if lesson.knows_the_task else ""
    return LearningValues(
        env=lesson.env.name,
        estimator=lesson.arm.name,
        seeds=lesson.plan.seeds,
        steps=lesson.steps,
        groups_a_step=GROUPS_A_STEP,
        group_size=lesson.env.config.group_size,
        items=lesson.plan.items,
        learning_rate=lesson.arm.learning_rate,
        seconds=round(lesson.seconds, 1),
        verdicts=[_learnable(learned, beyond, lesson), *_gamed(parts), *_notes(lesson, free)],
        curves=_curves([[each.numbers for each in arm.curve if each.numbers] for arm in lesson.learned]),
        changes=[
            LearnedChange(
                name=name,
                start=learned[name].before,
                end=learned[name].after,
                reference=beyond[name].before if name in beyond else None,
                direction=learned[name].direction,
            )
            for name in _in_order(learned)
        ],
        parts=parts,
        states=lesson.learned[0].states,
        rollouts=[],
    )


def write_page(folder: LearnFolder, values: LearningValues, lesson: Lesson) -> None:
    """Make the page: what was learned, and rollouts of the first, the last and the reference policy.

    Raises:
        RecordError: it cannot be written.
    """
    out = folder.path / PAGE
    content = PageContent(cutter=TextCutter(max_chars=_MAX_TEXT), token_texts=TokenTexts.of(None))
    facts = {name: str(values[name]) for name in ("seeds", "steps", "group_size", "items", "learning_rate")}
    title = text_of(f"{values['env']}, learned")
    builder = IndexBuilder(title=title, source=text_of(folder.path), content=content, facts=facts)
    first = lesson.learned[0]
    rollouts: list[LearnedRollouts] = []
    with folder_for(out), PageFile(out, max_bytes=_MAX_BYTES) as page:
        for label, measured in (("start", first.start), ("end", first.end), (REFERENCE, lesson.reference)):
            shown = LearnedRollouts(label=label, groups=[])
            for credited in measured.groups:
                named = replace(credited.group, item_id=f"{label}: {credited.group.item_id}")
                builder.add(replace(credited, group=named), len(builder.entries) + 1, page.add)
                shown["groups"].append(builder.entries[-1]["id"])
            rollouts.append(shown)
        cut = ["rollouts between the first and the last step: they are in the records", *builder.cut()]
        index = builder.index(cut=cut, live=False)
        index["learning"] = {**values, "rollouts": rollouts}
        page.finish(index)


def _curves(curves: Sequence[Sequence[Numbers]]) -> dict[str, list[list[float | None]]]:
    names = dict.fromkeys(name for curve in curves for step in curve for name in step)
    return {
        name: [[step.get(name, 0.0 if name.startswith(PART) else None) for step in curve] for curve in curves]
        for name in _in_order(names)
    }


def _in_order(names: Mapping[str, Any]) -> list[str]:
    first, then = (SCORE, OUTCOME, PASSED), (TURNS, TOKENS)
    parts = sorted(name for name in names if name.startswith(PART))
    rest = [name for name in names if name not in (*first, *parts, *then)]
    return [name for name in (*first, *parts, *then, *rest) if name in names]


def _learnable(learned: Mapping[str, Change], beyond: Mapping[str, Change], lesson: Lesson) -> LearnedVerdict:
    change = learned.get(SCORE)
    if change is None:
        return LearnedVerdict(about="learnable", good=False, text="nothing was scored")
    reference = f"; the {REFERENCE} has {beyond[SCORE].before:.3f}" if SCORE in beyond else ""
    moved = f"{change.before:.3f} → {change.after:.3f} in {lesson.steps} steps ({lesson.arm.name}{reference})"
    if PASSED in learned:  # what `evaluate` would count
        moved += f"; passed {learned[PASSED].before:.0%} → {learned[PASSED].after:.0%}"
    text = {
        "up": f"yes: the score rises, {moved}",
        "down": f"the score falls, {moved}: what is learned from and what is scored are not the same",
        "unclear": f"not seen: the score does not clearly rise, {moved}",
    }[change.direction]
    return LearnedVerdict(about="learnable", good=change.direction == "up", text=text)


def _gamed(parts: Sequence[LearnedPart]) -> Iterator[LearnedVerdict]:
    """A line for each turn reward that is not as it should be, and one for the others."""
    if not parts:
        yield LearnedVerdict(about="gamed", good=None, text="no turn reward was earned, so none is gamed")
    others: dict[str, list[str]] = {}
    for found in parts:
        part, verdict, why = found["part"], found["verdict"], found["why"]
        if verdict in _FLAGGED:
            kind = "" if verdict == "gamed" else f"{verdict}: "
            good = None if verdict == "on the way" else False
            yield LearnedVerdict(about="gamed", good=good, text=f"{kind}{part}: {why}")
        else:
            others.setdefault(verdict, []).append(f"{part} ({why})" if verdict == "not learned" else part)
    for verdict, names in others.items():
        text = f"{', '.join(names)} {_QUIET[verdict]}"
        yield LearnedVerdict(about="gamed", good=True if verdict == "with the outcome" else None, text=text)


def _notes(lesson: Lesson, free: str) -> Iterator[LearnedVerdict]:
    has_script = writes(lesson.env, "scripted_choices")
    choices = sum((each.choices for each in lesson.learned), Counter[bool]())
    unmet = choices[False] / choices.total() if choices else 0.0
    first = [each.group.trajectories for each in lesson.learned[0].start.groups]
    equal = [len({each.score for each in siblings}) == 1 for siblings in first if len(siblings) > 1]
    alike = sum(equal) / len(equal) if equal else 0.0
    lost = lesson.lost.total()
    played = diagnosis_by(sum((each.causes for each in lesson.learned), Counter[Cause | None]()))
    notes = [
        (bool(free),
         f"more than the {REFERENCE} does, and little is paid against it: {free}"),
        (lesson.steps < lesson.plan.steps,
         f"the time was over after {lesson.steps} of {lesson.plan.steps} steps; --seconds gives more"),
        (not has_script,
         "the choices are those of the generic agent, which calls each tool with minimal arguments: write "
         "scripted_choices with what a good and a bad agent would do"),
        (has_script and not lesson.knows_the_task,
         f"the {REFERENCE} is not clearly better than chance, so that it is no measure here"),
        (not writes(lesson.env, "state_key"),
         "a state is what was said last: write state_key to say what a turn really depends on, so that more "
         "states are equal"),
        (unmet > 1 - _FEW,
         f"{unmet:.0%} of the choices were in states never met before, where a table has learned nothing: a "
         f"language model may do better than this trial"),
        (alike > _FEW,
         f"in {alike:.0%} of the first groups all siblings earned the same, which teaches nothing"),
        (lesson.steps > 0 and played.is_nothing,
         f"with {lesson.arm.name} {played}"),
        (lost > 0,
         f"{lost:,} of {lost + lesson.survived:,} rollouts broke and count nowhere, most by: "
         f"{'; '.join(why for why, _ in lesson.lost.most_common(1))}"),
    ]  # fmt: skip
    for holds, text in notes:
        if holds:
            yield LearnedVerdict(about="note", good=None, text=text)
