# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUntypedFunctionDecorator=false, reportAttributeAccessIssue=false
# torch is in no lock: its types are unknown where it is not installed.
"""What a model drops at random when it trains, so that the loss is not of the network that plays."""

from typing import Any

import torch

_TOKENS = 16
_FORWARDS = 3


def dropout_modules(model: Any) -> list[str]:
    """Names of the modules that drop."""
    modules = model.named_modules()
    return [name for name, module in modules if isinstance(module, torch.nn.Dropout) and module.p > 0.0]


def dropout_fields(config: Any) -> list[str]:
    """Settings of a model's config that drop, as `attention_dropout=0.1`."""
    fields = config.get_text_config().to_dict().items()
    return [f"{name}={value}" for name, value in fields if "drop" in name and _is_positive(value)]


@torch.no_grad()
def is_random(model: Any) -> bool:
    """Whether the model, as it trains, makes different things of equal tokens."""
    vocabulary = model.config.get_text_config().vocab_size
    ids = torch.arange(_TOKENS, device=model.device)[None] % vocabulary
    seen = torch.ones_like(ids)
    was_training = model.training
    model.train()
    try:
        given = {"input_ids": ids, "attention_mask": seen, "use_cache": False}
        first, *others = (model(**given).logits for _ in range(_FORWARDS))
    finally:
        model.train(was_training)
    return not all(torch.equal(first, other) for other in others)


def _is_positive(value: Any) -> bool:
    return isinstance(value, float | int) and value > 0
