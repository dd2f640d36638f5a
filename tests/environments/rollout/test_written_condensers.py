"""The contract of tokens under condensers that users write: drop, rewrite, insert, bring back, sum up."""

import random

from environments.rollout.context import Entry, fit_context, without_oldest
from environments.trajectory import NOT_SAMPLED, Message
from tests.environments.rollout.condensed_play import RENDERER, Step, as_seen, play
from tests.tables import cases

STEPS = [
    Step(text=f"step {n}", results=("word " * (7 * n),) * (n % 3), reply="go on" if n % 3 == 0 else None)
    for n in range(8)
]


class Written:
    name = "written"

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.known = {}

    async def condense(self, history, asking):
        self.known |= {entry.index: entry for entry in history if entry.index is not None}
        return await self.rng.choice(
            [
                self.dropped,
                self.rewritten,
                self.noted,
                self.brought_back,
                self.summed_up,
                self.summed_up_twice,
            ]
        )(history, asking)

    async def dropped(self, history, asking):
        return without_oldest(history, 1)

    async def rewritten(self, history, asking):
        return [entry.with_content(entry.message.content[:9]) if entry.turn else entry for entry in history]

    async def noted(self, history, asking):
        note = Entry(message=Message(role="user", content="A note."))
        opening = [entry for entry in history if entry.turn is None]
        return [*opening, note, *(entry for entry in history if entry.turn is not None)]

    async def brought_back(self, history, asking):
        return [self.known[index] for index in sorted(self.known)]

    async def summed_up(self, history, asking):
        text = await asking.policy_summary(history, "Sum up.")
        opening = [entry for entry in history if entry.turn is None and not entry.is_summary]
        return [*opening, Entry(message=Message(role="user", content=text), is_summary=True)]

    async def summed_up_twice(self, history, asking):
        await asking.policy_summary(without_oldest(history, 1), "Sum up a part.")
        await self.summed_up(history, asking)
        return history


@cases("seed", range(12))
def test_what_was_asked_is_the_context_and_the_row_and_each_sampled_token_is_in_one(seed):
    rollout = play(fit_context(600), Written(seed), steps=STEPS)
    sampled, before = set(), len(rollout.loop.messages)
    for turn, request in zip(rollout.turns, rollout.requests, strict=True):
        seen = as_seen(turn, rollout.conversation, before)
        row = rollout.loop.rows[turn.span.row].token_ids
        assert request.messages == seen
        assert RENDERER.prompt_ids(seen, rollout.loop.toolset.specs) == row[: turn.span.start]
        here = {(turn.span.row, index) for index in range(turn.span.start, turn.span.end)}
        assert not here & sampled
        sampled |= here
        before += len(turn.messages)
    assert sampled == {
        (number, index)
        for number, row in enumerate(rollout.loop.rows)
        for index, logprob in enumerate(row.logprobs)
        if logprob != NOT_SAMPLED
    }
    assert {turn.kind for turn in rollout.turns} == {"act", "summary"}
