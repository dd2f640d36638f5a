"""The scripted agent of `long_math`: it knows what it sees, and takes notes as its skill allows."""

import re
from collections.abc import Sequence

from environments.long_math_env.audit_memory import AuditMemory
from environments.policy.scripted import Choice, call, say
from environments.trajectory import Message

_SLIP = 10
"""How far off a sum is that was done wrong."""
_ROLE = re.compile(r"^\[(system|user|assistant|tool)\]\n", re.MULTILINE)
_CALL = re.compile(r"^next_page\((.*)\)$", re.MULTILINE)


def ledger_script(messages: Sequence[Message], skill: float) -> Sequence[Choice]:
    """What comes next: mostly the next page with the right number, or at the end the sum of what is known.

    With skill 1 each call has a note of all stocks beside it; without skill none has, and what is no longer
    in the context is lost. Other mistakes, rarer with skill: a slip in a sum, a call that cannot be read, a
    tool that does not exist, an answer before the last page.
    """
    memory = AuditMemory.of(messages)
    if memory.page >= memory.pages:
        return _likely(1 - 0.1 * (1 - skill), [_answer(memory)], [_answer(memory, slip=_SLIP)])
    p_right = 1 - 0.06 * (1 - skill)
    stock = memory.last_stock
    carried = {} if stock is None else {"carried": stock}
    slipped = {} if stock is None else {"carried": stock + _SLIP}
    wrong = [
        call("next_page", slipped),
        call("next_page", '{"carried": '),
        call("turn_page", {}),
        _answer(memory),
    ]
    return [
        Choice(probability=p_right * skill, message=call("next_page", carried, content=memory.note)),
        Choice(probability=p_right * (1 - skill), message=call("next_page", carried)),
        *(Choice(probability=(1 - p_right) / len(wrong), message=message) for message in wrong),
    ]


def ledger_summary(messages: Sequence[Message], skill: float) -> Sequence[Choice]:
    """A summary: mostly of all that is known; else of half of the stores, or of nothing that matters."""
    memory = AuditMemory.of(messages)
    half = memory.note_of(memory.stores[::2])
    lost = "I have read some pages of the ledger and shall go on with the next one."
    return _likely(0.4 + 0.6 * skill, [say(memory.note)], [say(half), say(lost)])


def second_summary(messages: Sequence[Message]) -> str:
    """All that a second model knows, which reads the conversation as the text of one message."""
    return AuditMemory.of(_conversation_in(messages[-1].content)).note


def _conversation_in(text: str) -> Sequence[Message]:
    _, *parts = _ROLE.split(text)
    messages: list[Message] = []
    for role, said in zip(parts[::2], parts[1::2], strict=True):
        if role == "assistant" and (called := _CALL.search(said)):
            messages.append(call("next_page", called[1], content=said))
        else:
            messages.append(Message(role="tool" if role == "tool" else "user", content=said))
    return messages


def _answer(memory: AuditMemory, *, slip: int = 0) -> Message:
    return say(f"<answer>{sum(memory.stocks.values()) + slip}</answer>")


def _likely(p_right: float, right: Sequence[Message], wrong: Sequence[Message]) -> list[Choice]:
    return [
        *(Choice(probability=p_right / len(right), message=message) for message in right),
        *(Choice(probability=(1 - p_right) / len(wrong), message=message) for message in wrong),
    ]
