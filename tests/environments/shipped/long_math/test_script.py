"""None"""

from environments.policy.scripted import call
from environments.policy.second_models import ScriptedAnswers, SecondModel
from environments.rollout.condensing import model_summary
from environments.shipped.long_math import LongMathEnv
from environments.shipped.long_math.env import LongMathConfig
from environments.shipped.long_math.script import AuditMemory, second_summary
from environments.trajectory import Message
from tests.environments.shipped.long_math.audit_play import whole_ledger
from tests.tables import cases


def conversation(pages: int, *, noted_after: int | None = None) -> list[Message]:
    """The opening and the first pages, read by an agent that carries nothing."""
    ledger = whole_ledger()
    prompt = LongMathEnv(LongMathConfig()).format_prompt(ledger)
    messages = [Message(role="user", content=prompt)]
    for number, page in enumerate(ledger["pages"][:pages], 1):
        noted = number - 1 == noted_after
        note = AuditMemory.of(messages).note if noted else ""
        messages += [
            call("next_page", {}, content=note),
            Message(role="tool", content=page, tool_call_id="c"),
        ]
    return messages


def test_who_sees_every_page_knows_the_answer():
    memory = AuditMemory.of(conversation(24))
    assert set(memory.stocks) == set(memory.stores)
    assert sum(memory.stocks.values()) == whole_ledger()["answer"]


def test_a_summary_keeps_it_too():
    messages = conversation(18)
    summary = Message(
        role="user", content=f"Summary of the conversation so far:\n\n{AuditMemory.of(messages).note}"
    )
    rest = conversation(24)[1 + 2 * 18 :]
    memory = AuditMemory.of([messages[0], summary, *rest])
    assert sum(memory.stocks.values()) == whole_ledger()["answer"]


@cases("kept", [1, 2, 5])
def test_turns_that_stay_beside_a_summary_are_not_counted_twice(kept: int):
    messages = conversation(18)
    summary = Message(role="user", content=AuditMemory.of(messages).note)
    rest = conversation(24)[1 + 2 * (18 - kept) :]
    memory = AuditMemory.of([messages[0], summary, *rest])
    assert sum(memory.stocks.values()) == whole_ledger()["answer"]


async def test_a_second_model_knows_what_the_conversation_shows_that_it_is_quoted():
    async def answers(messages):
        return second_summary(messages)

    model = SecondModel(model=ScriptedAnswers(name="scripted_summariser", script=answers))
    request = Message(role="user", content="Sum up.")
    assert (
        await model_summary(model, [*conversation(18), request], seed=0)
        == AuditMemory.of(conversation(18)).note
    )
