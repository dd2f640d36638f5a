"""The scripted agent of `judged_writing`: it knows good sentences, and uses them as its skill allows."""

from collections.abc import Sequence

from environments.policy.scripted import Choice, say
from environments.shipped.judged_writing.judging import Item
from environments.trajectory import Message


def writing_script(item: Item, messages: Sequence[Message], skill: float) -> Sequence[Choice]:
    """What comes next: mostly all the sentences; else too few of them, one again and again, or an excuse.

    With skill 1 every draft is whole. Without skill half of the drafts leave a sentence out.
    """
    sentences: Sequence[str] = item["sentences"]
    drafts = sum(message.role == "assistant" for message in messages)
    p_right = 0.1 + 0.9 * skill
    left_out = [
        [sentence for index, sentence in enumerate(sentences) if index != gap]
        for gap in range(len(sentences))
    ]
    wrong = [
        *(" ".join(kept) for kept in left_out),
        " ".join([sentences[0]] * len(sentences)),
        " ".join(sentences[: 1 + drafts]),
        "I would rather write about something else.",
    ]
    shares = [0.5 / len(left_out)] * len(left_out) + [0.5 / 3] * 3
    return [
        Choice(probability=p_right, message=say(" ".join(sentences))),
        *(
            Choice(probability=(1 - p_right) * share, message=say(text))
            for share, text in zip(shares, wrong, strict=True)
        ),
    ]
