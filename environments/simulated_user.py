"""A simulated user: a second model that plays a persona, whose words are replies to the agent."""

from collections.abc import Sequence

from environments.reward_context import RolloutContext
from environments.second_models.text_model import TextAnswer
from environments.trajectory import Message
from tools.errors import ConfigError, SecondModelError

TRIES = 3
"""Answers that may be empty, cut or a refusal, each with another seed, before the sibling fails."""
IS_DONE = "user is done"
_DOES_NOT_FIT = "the conversation no longer fits the user's model"
_FILTERED = "the user's model filters the conversation"
_BEGINS = "(The conversation begins. Write your first message.)"
_SILENCE = "(The assistant says nothing.)"
_INSTRUCTIONS = """\
You play a person who writes to an assistant. Stay this person; never help, and never write for the assistant.
Write only what the person would write next: one message, without quotation marks or stage directions.
When the person has what they want, or gives up, write {done} and nothing else.

The person:
{persona}"""


class SimulatedUser:
    """Plays a user with the model of `--user.base_url`, or with `scripted_user` without one.

    One instance serves all rollouts: the messages of a rollout's user are in its context.
    """

    def __init__(
        self, *, done: str = "###STOP###", max_replies: int = 10, instructions: str = _INSTRUCTIONS
    ) -> None:
        """A kind of user.

        Args:
            done: the user's mark for the end, which is removed.
            max_replies: after so many replies it is done.
            instructions: the system message of its model, with `{persona}` and `{done}` for their texts.

        Raises:
            ConfigError: the marker is empty, there is no reply, or the persona has no place.
        """
        if not done.strip() or max_replies < 1 or "{persona}" not in instructions:
            raise ConfigError(
                f"SimulatedUser(done={done!r}, max_replies={max_replies}): give a marker, 1 reply or more, "
                f"and instructions with {{persona}} in them"
            )
        self.done = done
        self.max_replies = max_replies
        self.instructions = instructions

    async def opening(self, ctx: RolloutContext, *, persona: str) -> str:
        """The user's first message, for `format_prompt`.

        Raises:
            SecondModelError: the model gave none.
            NoModelError: nobody plays the user.
        """
        answer = await self._answer(ctx, (self._system(persona), Message(role="user", content=_BEGINS)), 0)
        text = (answer.text or "").replace(self.done, "").strip()
        if not text:
            raise SecondModelError(f"the user has no first message ({answer.problem or 'only its marker'})")
        return text

    async def reply(self, ctx: RolloutContext, *, persona: str) -> str | None:
        """What the user writes next, for `respond`; `None`, and the rollout ends, when it is done.

        It is done when its marker stands in what it writes, or after `max_replies`.

        Raises:
            SecondModelError: the model gave nothing that can be used.
            NoModelError: nobody plays the user.
        """
        replies = ctx.user_replies.get(id(self), 0)
        if replies >= self.max_replies:
            ctx.end(IS_DONE)
            return None
        conversation = (self._system(persona), *_as_the_user_sees(ctx.messages))
        answer = await self._answer(ctx, conversation, replies + 1)
        if answer.text is None or answer.problem is not None:
            ctx.end(_FILTERED if answer.problem == "filtered" else _DOES_NOT_FIT)
            return None
        ctx.user_replies[id(self)] = replies + 1
        if self.done in answer.text:
            ctx.end(IS_DONE)
        return answer.text.replace(self.done, "").strip() or None

    async def _answer(self, ctx: RolloutContext, conversation: Sequence[Message], number: int) -> TextAnswer:
        """The model's answer; with a problem only where it takes no such conversation."""
        problems: list[str] = []
        while len(problems) < TRIES:
            seed = (ctx.seed + TRIES * number + len(problems)) % 2**31
            answer = await ctx.user_model.ask(conversation, seed=seed)
            if answer.problem in (None, "too_long"):
                return answer
            problems.append(answer.problem)
            if problems == ["filtered"] * TRIES:
                return answer
        raise SecondModelError(
            f"the user's model gave nothing that can be used, {TRIES} times: {', '.join(problems)}"
        )

    def _system(self, persona: str) -> Message:
        text = self.instructions.replace("{done}", self.done).replace("{persona}", persona)
        return Message(role="system", content=text)


def _as_the_user_sees(messages: Sequence[Message]) -> list[Message]:
    """The conversation from the other side, as servers want it: the roles take turns, a user's is last.

    Of the agent's turns it has only the text, no reasoning, no calls and no results.
    """
    seen: list[Message] = []
    for message in messages:
        if message.role not in ("user", "assistant") or not message.content.strip():
            continue
        role = "user" if message.role == "assistant" else "assistant"
        if seen and seen[-1].role == role:
            joined = f"{seen.pop().content}\n\n{message.content}"
            seen.append(Message(role=role, content=joined))
        else:
            seen.append(Message(role=role, content=message.content))
    if not seen or seen[0].role != "user":
        seen.insert(0, Message(role="user", content=_BEGINS))
    if seen[-1].role != "user":
        seen.append(Message(role="user", content=_SILENCE))
    return seen
