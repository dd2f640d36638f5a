"""A simulated user: a second model that plays a persona and replies to the agent."""

import math
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import ClassVar

from environments.rewards.reward_context import USER_VOTE, RolloutContext
from environments.trajectory import Message
from tools.errors import ConfigError, SecondModelError

TRIES = 3
"""Attempts with other seeds if an answer is empty, cut or a refusal."""
_BEGINS = "(The conversation begins. Write your first message.)"
_SILENCE = "(The assistant says nothing.)"
_INSTRUCTIONS = """\
You play a person who writes to an assistant. Stay this person; never help, and never write for the assistant.
Write only what the person would write next: one message, without quotation marks or stage directions.
Once the person has what they want, end the message with a line that is {done} alone; once the person gives
up, or is only put off, with a line that is {gave_up} alone. The person decides that, never the assistant.
{votes}
The person:
{persona}"""
_VOTES = """\
When the person likes or dislikes the assistant's last message, end your message with a line that is one of
{marks} alone.
"""


class SimulatedUser:
    """Plays a user with the model of `--user.base_url`, or with `scripted_user` without one.

    One instance serves all rollouts: a rollout's context has its messages. Marks (the two ends and the votes)
    count on the last lines of an answer, each alone on its line. The agent sees none of them, and the user's
    model sees none that the agent wrote.
    """

    SATISFIED: ClassVar[str] = "the user is satisfied"
    """End reason of a satisfied user: the one that an outcome should reward."""
    GAVE_UP: ClassVar[str] = "the user gave up"
    OUT_OF_REPLIES: ClassVar[str] = "the user is out of replies"
    UNUSABLE: ClassVar[str] = "the user gives no usable answer"
    """The model refused, returned no text, was cut or rejected the conversation; the agent may cause it."""

    def __init__(
        self,
        *,
        done: str = "###STOP###",
        gave_up: str = "###GIVE UP###",
        votes: Mapping[str, float] | None = None,
        max_replies: int = 10,
        instructions: str = _INSTRUCTIONS,
    ) -> None:
        """Configure a kind of user.

        Args:
            done: mark of a satisfied user.
            gave_up: mark of a user that gives up.
            votes: marks that judge the agent's last message, with their values, such as `{"👍": 1.0, "👎":
                -1.0}`: the metric `user_vote` of that turn.
            max_replies: number of replies after which the rollout ends.
            instructions: system message of the model, with `{persona}`, `{done}`, `{gave_up}` and
                `{votes}` as placeholders.

        Raises:
            ConfigError: if a mark is empty, has several lines or is not unique, a vote is not finite,
                `max_replies` is below 1, or `{persona}` is missing.
        """
        self.votes = dict(votes or {})
        marks = (done, gave_up, *self.votes)
        if len(set(marks)) < len(marks) or any(
            mark != mark.strip() or "\n" in mark or not mark for mark in marks
        ):
            raise ConfigError(
                f"SimulatedUser(done={done!r}, gave_up={gave_up!r}, votes={list(self.votes)!r:.200}): give "
                f"marks that differ, each of one line without space around it"
            )
        if not all(map(math.isfinite, self.votes.values())):
            raise ConfigError(f"SimulatedUser(votes={votes!r:.200}): give each mark a finite number")
        if max_replies < 1 or "{persona}" not in instructions:
            raise ConfigError(
                f"SimulatedUser(max_replies={max_replies}): give 1 reply or more, and instructions with "
                f"{{persona}} in them"
            )
        self.done = done
        self.gave_up = gave_up
        self.max_replies = max_replies
        self.instructions = instructions
        self._ends = {done: self.SATISFIED, gave_up: self.GAVE_UP}
        self._marks = re.compile("|".join(re.escape(mark) for mark in sorted(marks, key=len, reverse=True)))

    async def opening(self, ctx: RolloutContext, *, persona: str) -> str:
        """Return the user's first message for `format_prompt`; a cut one if there is no whole one.

        Raises:
            SecondModelError: if the model returned none.
        """
        conversation = (self._system(persona), Message(role="user", content=_BEGINS))
        problems: list[str] = []
        cut = ""
        async for text, _, problem in self._answers(ctx, conversation, 0):
            if text and problem is None:
                ctx.user_model.was_usable()
                return text
            problems.append(problem or "empty")
            cut = cut or (text if problem == "cut" else "")
        if cut:
            return cut
        raise SecondModelError(f"the user's model gave no first message: {', '.join(problems)}")

    async def reply(self, ctx: RolloutContext, *, persona: str) -> str | None:
        """Return the user's next message for `respond`, or None if it has no text.

        It ends the rollout at an end mark, after `max_replies`, or if the model returns nothing usable;
        `ctx.end_reason` is then a constant of this class.

        Raises:
            SecondModelError: if the model cannot be reached, or failed in three groups.
        """
        replies = ctx.user_replies.get(id(self), 0)
        if replies >= self.max_replies:
            ctx.end(self.OUT_OF_REPLIES)
            return None
        conversation = (self._system(persona), *self._as_the_user_sees(ctx.messages))
        problems: list[str] = []
        async for text, marks, problem in self._answers(ctx, conversation, replies + 1):
            end = next((self._ends[mark] for mark in marks if mark in self._ends), None)
            if problem is not None or not (text or end):
                problems.append(problem or "empty")
                continue
            ctx.user_model.was_usable()
            ctx.user_replies[id(self)] = replies + 1
            vote = next((self.votes[mark] for mark in marks if mark in self.votes), None)
            if vote is not None:
                ctx.metrics[USER_VOTE] = vote
            if end is not None:
                ctx.end(end)
            return text or None
        ctx.user_model.was_unusable(", ".join(problems))
        ctx.end(self.UNUSABLE)
        return None

    async def _answers(
        self, ctx: RolloutContext, conversation: Sequence[Message], number: int
    ) -> AsyncIterator[tuple[str, Sequence[str], str | None]]:
        for attempt in range(TRIES):
            seed = (ctx.seed + TRIES * number + attempt) % 2**31
            answer = await ctx.user_model.ask(conversation, seed=seed)
            yield *self._read(answer.text or ""), answer.problem
            if answer.problem == "too_long":
                return  # for every seed

    def _read(self, answer: str) -> tuple[str, Sequence[str]]:
        lines, marks = answer.rstrip().split("\n"), list[str]()
        while lines and ((line := lines[-1].strip()) == "" or self._marks.fullmatch(line)):
            marks += [line] if line else []
            lines.pop()
        return self._marks.sub("", "\n".join(lines)).strip(), marks

    def _system(self, persona: str) -> Message:
        votes = _VOTES.replace("{marks}", ", ".join(self.votes)) if self.votes else ""
        values = {"votes": votes, "done": self.done, "gave_up": self.gave_up, "persona": persona}
        text = self.instructions
        for name, value in values.items():
            text = text.replace(f"{{{name}}}", value)
        return Message(role="system", content=text)

    def _as_the_user_sees(self, messages: Sequence[Message]) -> list[Message]:
        """Return the conversation from the user's side: roles alternate, and the last message is a user's.

        Of the agent's turns only the text is shown, without marks, which the user would quote.
        """
        seen: list[Message] = []
        for message in messages:
            if message.role not in ("user", "assistant") or not message.content.strip():
                continue
            role, content = "assistant", message.content
            if message.role == "assistant":
                role, content = "user", self._marks.sub("…", message.content)
            if seen and seen[-1].role == role:
                content = f"{seen.pop().content}\n\n{content}"
            seen.append(Message(role=role, content=content))
        if not seen or seen[0].role != "user":
            seen.insert(0, Message(role="user", content=_BEGINS))
        if seen[-1].role != "user":
            seen.append(Message(role="user", content=_SILENCE))
        return seen
