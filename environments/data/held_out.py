"""Items that are held out of training for evaluation: a share that each item's id alone decides."""

import hashlib
from collections.abc import Sequence

from tools.errors import DatasetError


def is_held_out(item_id: str, share: float) -> bool:
    """Whether an item is one of the share.

    No seed and no other item has a say: an item that one run trains on is in no other run's evaluation, and
    what is held out of a larger share includes what is held out of a smaller one.
    """
    digest = hashlib.blake2b(f"held out/{item_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) < share * 2**64


def kept_indices(item_ids: Sequence[str], share: float, *, evaluation: bool) -> list[int]:
    """Which items a command rolls out: those held out in an evaluation, the others elsewhere.

    Raises:
        DatasetError: none are left.
    """
    kept = [index for index, each in enumerate(item_ids) if is_held_out(each, share) == evaluation]
    if not kept:
        which = "none is held out" if evaluation else "all are held out"
        raise DatasetError(
            f"--env.eval_share {share:g} of {len(item_ids)} items: {which}, as their ids decide; give "
            f"another share, or more items"
        )
    return kept
