"""The page of a trial: what was learned, and rollouts of the first, the last and the reference policy."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from environments.lab.learning.trial import REFERENCE
from environments.lab.learning.tried_estimators import TrialResult
from environments.record.private_file import folder_for
from environments.trajectory import CreditedGroup
from environments.viewer.learning_values import LearnedRollouts, LearningValues
from environments.viewer.page_file import PageFile
from environments.viewer.page_texts import TextCutter
from environments.viewer.record_page import IndexBuilder, text_of
from environments.viewer.token_texts import TokenTexts
from environments.viewer.turn_values import PageContent

_MAX_TEXT = 20_000
_MAX_BYTES = 200_000_000


def write_learning_page(out: Path, record: Path, values: LearningValues, result: TrialResult) -> None:
    """Make the page, which stands at `out` once it is whole.

    Raises:
        RecordError: it cannot be written.
    """
    content = PageContent(cutter=TextCutter(max_chars=_MAX_TEXT), token_texts=TokenTexts.of(None))
    facts = {name: str(values[name]) for name in ("seeds", "steps", "group_size", "items", "learning_rate")}
    title = text_of(f"{values['env']}, learned")
    builder = IndexBuilder(title=title, source=text_of(record), content=content, facts=facts)
    rollouts: list[LearnedRollouts] = []
    with folder_for(out), PageFile(out, max_bytes=_MAX_BYTES) as page:
        for label, groups in _labelled(result):
            shown = LearnedRollouts(label=label, groups=[])
            for credited in groups:
                named = replace(credited.group, item_id=f"{label}: {credited.group.item_id}")
                builder.add(replace(credited, group=named), len(builder.entries) + 1, page.add)
                shown["groups"].append(builder.entries[-1]["id"])
            rollouts.append(shown)
        cut = ["rollouts between the first and the last step: they are in the record", *builder.cut()]
        index = builder.index(cut=cut, live=False)
        shown_values = values.copy()
        shown_values["rollouts"] = rollouts
        index["learning"] = shown_values
        page.finish(index)


def _labelled(result: TrialResult) -> list[tuple[str, Sequence[CreditedGroup]]]:
    """Those of the first seed."""
    ends = [(f"end, {arm.estimator}", arm.seeds[0].end_groups) for arm in result.arms if arm.refused is None]
    return [("start", result.start_groups), *ends, (REFERENCE, result.reference_groups)]
