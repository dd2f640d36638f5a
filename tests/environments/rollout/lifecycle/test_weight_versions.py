"""`--env.max_staleness`: the age of a group, counted in the versions of the weights that were met since."""

import asyncio
from dataclasses import replace

import pytest

from environments.config import AgentEnvConfig
from environments.credit import credited
from environments.rollout.lifecycle.weight_versions import WeightVersions
from environments.testing import group_of
from environments.trajectory import SEVERAL_VERSIONS, Artefact, Message, Span, Turn, WeightSpan
from environments.wire.views import VIEWS
from tests.environments.chat.chat_env import TASK, Chat, chat
from tests.environments.chat.versioned import Versioned, played_by
from tests.environments.record.any_group import all_withheld
from tests.tables import cases
from tools.errors import ConfigError

TURN = Turn(index=0, message=Message(role="assistant", content=""), span=Span(row=0, start=0, end=0))


def met(*versions, most=0):
    seen = WeightVersions(AgentEnvConfig(max_staleness=most))
    for version in versions:
        seen.note(replace(TURN, weight_version=version))
    return seen


async def groups_of(env, count=1):
    async with env:
        return [await aged_group(env) for _ in range(count)]


async def aged_group(env):
    return env.withhold_stale(await env.run_group(TASK))


@cases(
    ("versions", "group", "age"),
    [
        (["a"], ["a"], 0),
        (["a", "b"], ["a"], 1),
        (["a", "b"], ["a", "b"], 1),
        (["a", "b", "a"], ["a"], 1),
        (["a", "b", "a"], ["b"], 0),
        (["a", "b", "c"], ["b", "c"], 1),
        (["a", f"a{SEVERAL_VERSIONS}b", "b"], ["b"], 0),
        (["a", "b"], ["of an earlier run"], 2),
        (["b", "b"], [], 0),
    ],
    ids=["one", "older", "both", "again", "newest", "oldest_counts", "joint", "never_met", "no_rollout"],
)
def test_the_age_of_a_group_is_the_versions_first_met_since_its_oldest(versions, group, age):
    assert met(*versions, most=age).too_old(group) is None
    if age:
        assert f"stale: {age} newer" in met(*versions, most=age - 1).too_old(group)


@cases(
    ("restored", "versions", "ages"),
    [
        (["a", "b", "c"], [], {"a": 2, "b": 1, "c": 0}),
        (["a", "b", "c"], ["c"], {"a": 2, "b": 1, "c": 0}),
        (["a", "b", "c"], ["d"], {"a": 3, "c": 1, "d": 0}),
        (["a", "b", "c"], ["b", "c", "b"], {"a": 2, "b": 1, "c": 0}),
        (["a", "b", "c"], ["a"], {"a": 0, "c": 1, "b": 2, "unknown to both": 3}),
    ],
    ids=["nothing_yet", "same_weights", "newer", "one_step_back", "back_to_the_first"],
)
def test_versions_of_an_earlier_process_keep_their_order_and_may_come_again(restored, versions, ages):
    seen = WeightVersions(AgentEnvConfig(max_staleness=0))
    seen.restore(restored)
    for version in versions:
        seen.note(replace(TURN, weight_version=version))
    told = {version: seen.too_old([version]) for version in ages}
    assert {version: 0 if text is None else int(text.split()[1]) for version, text in told.items()} == ages


def test_weights_of_a_trainer_that_went_back_are_the_newest_again():
    seen = met("step-1", "step-2", "step-3")
    seen.note_restart()
    seen.note(replace(TURN, weight_version="step-2"))
    assert seen.too_old(["step-2"]) is None
    assert "1 newer version " in seen.too_old(["step-3"])
    assert seen.seen == ("step-1", "step-3", "step-2")


@cases(
    ("known", "met_there", "order"),
    [
        ("ac", ["abc"], "abc"),
        ("ab", ["abc"], "abc"),
        ("xa", ["bac"], "xbac"),
        ("", ["ab", "ac", "acd"], "abcd"),
        ("abc", ["ca"], "abc"),
        ("abc", ["cc", "dd"], "abcd"),
        ("abc", [""], "abc"),
    ],
)
def test_what_another_process_met_comes_before_what_it_met_next(known, met_there, order):
    seen = met(*known)
    for versions in met_there:
        seen.merge(list(versions))
    assert "".join(seen.seen) == order


def test_what_another_process_met_anew_is_the_newest_and_somebodys_word():
    seen = WeightVersions(AgentEnvConfig(max_staleness=0))
    seen.restore(["a", "b", "c"])
    seen.merge([])
    with pytest.raises(ConfigError, match="no completion names one"):
        seen.staleness(["c"])
    seen.merge(["b", "a"])
    assert seen.seen == ("c", "b", "a")
    seen.merge(["b"])
    assert seen.seen == ("c", "b", "a")
    assert seen.staleness(["a"]) is None
    assert "1 newer version " in seen.staleness(["b"])


async def test_versions_that_only_an_earlier_process_met_are_nobodys_word():
    env = played_by(None, max_staleness=2)
    env.lifecycle.weight_versions.restore(["a"])
    with pytest.raises(ConfigError, match="no completion names one"):
        await groups_of(env)


@pytest.mark.parametrize("name", ["", SEVERAL_VERSIONS, f"a{SEVERAL_VERSIONS}"], ids=["empty", "two", "half"])
async def test_a_version_without_a_name_is_refused(name):
    (done,) = await groups_of(played_by(name))
    assert done.status == "failed"
    assert all("give its name, or None" in failure.error for failure in done.group.failures)


async def test_a_name_with_a_plus_is_one_version():
    (done,) = await groups_of(played_by("base + lora", max_staleness=0))
    assert (done.status, done.group.weight_versions) == ("ok", ("base + lora",))


async def test_weights_that_nobody_named_are_warned_of_once(caplog):
    await groups_of(played_by("default", max_staleness=1), 2)
    await groups_of(played_by("default"), 1)
    assert [record.message[:42] for record in caplog.records] == [
        "the model server calls its weights 'defaul"
    ]


def test_without_the_option_no_age_is_too_old():
    seen = WeightVersions(AgentEnvConfig())
    assert seen.too_old(["a", None]) is None


AGED = "stale: 1 newer version of the weights since its oldest turn, max_staleness is 0"


def credited_by(*versions, estimator="turn_return"):
    """Siblings of three turns, each of which was sampled by the version of that name."""
    group = group_of([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    trajectories = (
        replace(each, turns=tuple(replace(turn, weight_version=of[turn.index]) for turn in each.turns))
        for each, of in zip(group.trajectories, versions, strict=True)
    )
    return credited(replace(group, trajectories=tuple(trajectories)), estimator, policy="p")


async def test_a_rollout_over_two_versions_counts_by_its_oldest():
    (done,) = await groups_of(played_by(*"aaaaab", max_staleness=0))
    assert done.group.weight_versions == ("a", "b")
    assert (done.status, done.reason) == ("no_credit", AGED)


def test_only_the_siblings_that_are_too_old_are_withheld_and_still_compared_with():
    whole = credited_by("aab", "bbb")
    done = met("a", "b").withhold(whole)
    old, fresh = done.group.trajectories
    assert (old.stale, fresh.stale) == (AGED, None)
    assert [turn.trained for turn in (*old.turns, *fresh.turns)] == [False] * 3 + [True] * 3
    assert (done.status, done.advantages) == ("ok", ((0.0,) * 3, whole.advantages[1]))


def test_a_withheld_rollout_keeps_the_files_that_hooks_read():
    (played,) = group_of([[1.0]]).trajectories
    played = replace(played, artefacts=(Artefact(path="a", digest="d", size=1),), contents={"d": b"x"})
    old = played.withhold("old")
    assert (old.artefacts, old.contents) == (played.artefacts, played.contents)


@pytest.mark.parametrize("estimator", ["turn_return", "grpo", "gigpo", "process_supervision"])
@pytest.mark.parametrize("versions", [("aab", "bbb"), ("bbb", "bba"), ("aaa", "abb")])
def test_what_is_withheld_afterwards_is_as_if_it_had_been_credited_so(estimator, versions):
    done = met("a", "b").withhold(credited_by(*versions, estimator=estimator))
    assert done == credited(done.group, estimator, policy="p")


async def test_a_group_of_which_all_is_withheld_is_whole_and_no_view_gives_its_credit():
    (done,) = await groups_of(played_by(*"aaaaab", max_staleness=0))
    assert [len(each.turns) for each in done.group.trajectories] == [3, 3]
    assert done.advantages == ((0.0,) * 3,) * 2
    for view in VIEWS.values():
        assert not any(any(row.advantages or ()) for group in view(done) for row in group.rows)


async def test_a_group_within_the_bound_has_its_credit():
    (bounded,) = await groups_of(played_by(*"aaaaab", max_staleness=1))
    (plain,) = await groups_of(played_by(*"aaaaab"))
    assert bounded.status == "ok"
    assert bounded.advantages == plain.advantages


async def test_what_others_met_while_a_group_rolled_out_makes_it_old():
    env = played_by("a", "a", "a", "b", "a", "a", max_staleness=0, group_size=1, min_group_size=1)
    async with env:
        first, second = await asyncio.gather(aged_group(env), aged_group(env))
    assert [each.group.stale is None for each in (first, second)] == [True, False]


async def test_the_first_group_of_weights_without_a_name_refuses_the_option():
    with pytest.raises(ConfigError, match="no completion names one; use a server that does"):
        await groups_of(played_by(None, max_staleness=2))


async def test_a_turn_without_a_version_makes_its_group_stale_once_versions_are_known():
    first, second = await groups_of(played_by(*"aaaaaa", None, max_staleness=2), 2)
    assert first.status == "ok"
    assert second.reason == "stale: the version of the weights is unknown in some of its turns"


async def test_the_scripted_agent_is_refused_before_anything_is_opened():
    opened = []

    async def setup(self):
        opened.append(self)

    with pytest.raises(ConfigError, match="the scripted agent has none"):
        await groups_of(chat(setup=setup, max_staleness=1))
    assert opened == []


async def test_an_evaluation_asks_for_no_versions():
    env = chat(max_staleness=1)
    async with env.opened(evaluation=True):
        assert len((await env.rollout_group(TASK, 2)).trajectories) == 2


async def test_a_group_that_failed_is_failed_whatever_its_age():
    async def score_turn(self, item, turn, ctx):
        raise ZeroDivisionError

    broken = type("Broken", (Chat,), {"score_turn": score_turn})
    (done,) = await groups_of(played_by(*"ab", cls=broken, max_staleness=0))
    assert done.status == "failed"


def test_a_stale_group_is_not_credited_by_any_estimator():
    group = all_withheld(group_of([[1.0], [0.0]]), "stale: too old")
    done = credited(group, "turn_return", policy="p")
    assert (done.status, done.reason, done.advantages) == ("no_credit", "stale: too old", ((0.0,), (0.0,)))


async def test_a_completion_that_an_update_interrupted_is_one_turn_with_its_spans():
    spans = (WeightSpan(start=0, version="a"), WeightSpan(start=1, version="b"))

    class Resumed(Versioned):
        async def complete(self, request):
            sampled = await super().complete(request)
            return replace(sampled, weight_version=SEVERAL_VERSIONS.join("ab"), weight_spans=spans)

    async with Chat(AgentEnvConfig(group_size=1, min_group_size=1), policy=Resumed("a")) as env:
        (rollout,) = (await env.run_group(TASK)).group.trajectories
    assert [(turn.index, turn.weight_spans) for turn in rollout.turns] == [(0, spans), (1, spans), (2, spans)]
    assert (len(rollout.rows), rollout.weight_versions) == (1, ("a", "b"))


A = WeightSpan(start=0, version="a")


@cases(
    ("spans", "is_refused"),
    [
        (lambda ids: (A, WeightSpan(start=len(ids) - 1, version="b")), False),
        (lambda ids: (A, WeightSpan(start=len(ids), version="b")), True),
        (lambda ids: (A, WeightSpan(start=0, version="b")), True),
        (lambda ids: (WeightSpan(start=1, version="a"),), True),
        (lambda ids: (WeightSpan(start=0, version=""),), True),
        (lambda ids: ((0, "a"),), True),
        (lambda ids: [A], True),
    ],
    ids=["last token", "beyond", "twice", "late", "without a name", "a pair", "a list"],
)
async def test_spans_that_are_no_stretches_of_the_completion_are_refused(spans, is_refused):
    class Spanned(Versioned):
        async def complete(self, request):
            sampled = await super().complete(request)
            return replace(sampled, weight_spans=spans(sampled.token_ids))

    async with Chat(AgentEnvConfig(group_size=1, min_group_size=1), policy=Spanned("a")) as env:
        failures = (await env.run_group(TASK)).group.failures
    assert ["weight_spans is" in each.error for each in failures] == [True] * is_refused
