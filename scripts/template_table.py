"""What the renderer of chat templates makes of the templates and vocabularies in llama.cpp's source.

    python -m scripts.template_table     write the table of docs/templates.md

`.ci/run` puts the folder `models` of that source into build/llama_models.
"""

import random
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from environments.policy.rendering.chat_template import ChatTemplate
from environments.policy.rendering.chatml import CannotExtendError
from environments.policy.rendering.families import find_call_reader
from environments.policy.rendering.template_renderer import TemplateRenderer
from environments.trajectory import Message
from tools.calls import ToolCall, ToolSpec

ROOT: Final = Path(__file__).parents[1]
MODELS: Final = ROOT / "build" / "llama_models"
DOCUMENT: Final = ROOT / "docs" / "templates.md"
TURNS: Final = 8
SAMPLED: Final = 50
TOOL: Final = ToolSpec(
    name="weather",
    description="Tells the weather.",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}},
)
CALL: Final = ToolCall(id="call_0", name="weather", arguments='{"city": "Rome"}')
_SCALARS: Final = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_WORDS: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    name: str
    template: str
    vocabulary: str
    bos: str = ""
    eos: str = ""
    markers: tuple[str, ...] = ()
    """Control tokens of the template that the vocabulary lacks."""
    end_tokens: tuple[str, ...] = ()
    """Those of the model's generation_config.json."""


_CHATML: Final[Mapping[str, Any]] = {
    "eos": "<|im_end|>",
    "markers": ("<|im_start|>", "<|im_end|>", "<think>", "</think>"),
}
_DEEPSEEK: Final[Mapping[str, Any]] = {
    "bos": "<｜begin▁of▁sentence｜>",
    "eos": "<｜end▁of▁sentence｜>",
    "markers": ("<｜User｜>", "<｜Assistant｜>", "<think>", "</think>"),
}
FAMILIES: Final = (
    Family(name="Qwen 2.5", template="Qwen-Qwen2.5-7B-Instruct", vocabulary="qwen2", **_CHATML),
    Family(name="Qwen 3 Coder", template="Qwen3-Coder", vocabulary="qwen2", **_CHATML),
    Family(name="Bielik 3", template="Bielik-11B-v3.0-Instruct", vocabulary="llama-spm", **_CHATML),
    Family(name="SmolLM 3", template="HuggingFaceTB-SmolLM3-3B", vocabulary="llama-bpe", **_CHATML),
    Family(name="LFM 2", template="LFM2-8B-A1B", vocabulary="llama-bpe", **_CHATML),
    Family(
        name="Llama 3.1",
        template="meta-llama-Llama-3.1-8B-Instruct",
        vocabulary="llama-bpe",
        bos="<|begin_of_text|>",
        eos="<|eot_id|>",
    ),
    Family(
        name="Phi 3.5",
        template="microsoft-Phi-3.5-mini-instruct",
        vocabulary="phi-3",
        bos="<s>",
        eos="<|endoftext|>",
    ),
    Family(
        name="Gemma 2",
        template="google-gemma-2-2b-it",
        vocabulary="gemma-4",
        bos="<bos>",
        eos="<eos>",
        markers=("<start_of_turn>", "<end_of_turn>"),
    ),
    Family(
        name="Mistral Nemo",
        template="mistralai-Mistral-Nemo-Instruct-2407",
        vocabulary="llama-bpe",
        bos="<s>",
        eos="</s>",
        markers=("[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]"),
    ),
    Family(
        name="Mistral Small 3.2",
        template="Mistral-Small-3.2-24B-Instruct-2506",
        vocabulary="llama-bpe",
        bos="<s>",
        eos="</s>",
        markers=("[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
    ),
    Family(
        name="Command R7B",
        template="CohereForAI-c4ai-command-r7b-12-2024-tool_use",
        vocabulary="command-r",
        bos="<BOS_TOKEN>",
        eos="<|END_OF_TURN_TOKEN|>",
    ),
    Family(
        name="DeepSeek R1 Distill",
        template="deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
        vocabulary="llama-bpe",
        **_DEEPSEEK,
    ),
    Family(
        name="DeepSeek V3.1", template="deepseek-ai-DeepSeek-V3.1", vocabulary="deepseek-llm", **_DEEPSEEK
    ),
    Family(
        name="Granite 3.3",
        template="ibm-granite-granite-3.3-2B-Instruct",
        vocabulary="starcoder",
        eos="<|end_of_text|>",
        markers=("<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"),
    ),
    Family(
        name="Granite 4",
        template="ibm-granite-granite-4.0",
        vocabulary="starcoder",
        eos="<|end_of_text|>",
        markers=("<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"),
    ),
    Family(
        name="GLM 4.6",
        template="GLM-4.6",
        vocabulary="qwen2",
        eos="<|endoftext|>",
        markers=("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
        end_tokens=("<|user|>", "<|observation|>"),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    family: Family
    forks: int
    tokens: float
    """Tokens of all rows by sampled token."""
    stops: tuple[str, ...]
    tools: str

    def row(self) -> str:
        rows = "whole" if not self.forks else f"{self.forks} of {TURNS - 1} turns fork"
        stops = " ".join(f"`{stop}`" for stop in self.stops).replace("|", r"\|")
        return f"| {self.family.name} | {rows} | {self.tokens:.1f} | {stops} | {self.tools} |"


@lru_cache(maxsize=2)
def renderer_of(family: Family) -> TemplateRenderer:
    tokenizer = make_tokenizer(read_metadata(MODELS / f"ggml-vocab-{family.vocabulary}.gguf"))
    added = {family.bos, family.eos, *family.markers} - {""}
    tokenizer.add_special_tokens(  # pyright: ignore[reportUnknownMemberType] - its stub says `list`
        [AddedToken(each, special=True, normalized=False) for each in sorted(added)]
    )
    tokens = {"bos_token": family.bos, "eos_token": family.eos}
    text = (MODELS / "templates" / f"{family.template}.jinja").read_text(encoding="utf-8")
    ends = [id for id in map(tokenizer.token_to_id, family.end_tokens) if id is not None]
    template = ChatTemplate(family.name, text, tokens=tokens, end_ids=tuple(ends))
    return TemplateRenderer(template, tokenizer, find_reader=find_call_reader)


def examine(family: Family) -> Result:
    """Play a conversation of eight turns of random ids, with a system message."""
    renderer = renderer_of(family)
    draws = random.Random(family.name)
    messages = [Message(role="system", content="Be brief."), Message(role="user", content="Begin.")]
    rows = [list(renderer.prompt_ids(messages, ()))]
    forks = 0
    for _ in range(TURNS):
        sampled = sample_turn(renderer, draws)
        rows[-1] += sampled
        reply = Message(role="user", content="Go on with the next part, please.")
        messages += [renderer.parse(sampled, ()), reply]
        if len(messages) > 2 * TURNS + 1:
            break
        try:
            rows[-1] += renderer.extend(sampled, [reply], ())
        except CannotExtendError:
            forks += 1
            rows.append(list(renderer.prompt_ids(messages, ())))
    tools = "prompt" if renderer.tools_in_prompt else "template"
    texts = {token_id: text for text, token_id in renderer.markers.items()}
    return Result(
        family=family,
        forks=forks,
        tokens=sum(map(len, rows)) / (TURNS * SAMPLED),
        stops=tuple(texts[each] for each in renderer.stop_ids),
        tools=tools,
    )


def sample_turn(renderer: TemplateRenderer, draws: random.Random) -> list[int]:
    """Return random ids that are no control tokens, and a stop token."""
    control = set(renderer.markers.values())
    ids: list[int] = []
    while len(ids) < SAMPLED - 1:
        if (drawn := draws.randrange(renderer.vocabulary_size)) not in control:
            ids.append(drawn)
    return [*ids, renderer.stop_ids[0]]


def read_metadata(path: Path) -> Mapping[str, Any]:
    """Return the metadata of a GGUF without its tensors."""
    content, at = path.read_bytes(), 24
    (count,) = struct.unpack_from("<Q", content, 16)

    def read(kind: int) -> Any:
        nonlocal at
        if kind == 8:
            (size,) = struct.unpack_from("<Q", content, at)
            at += 8 + size
            return content[at - size : at].decode("utf-8", "replace")
        if kind == 9:
            inner, size = struct.unpack_from("<IQ", content, at)
            at += 12
            return [read(inner) for _ in range(size)]
        (value,) = struct.unpack_from(f"<{_SCALARS[kind]}", content, at)
        at += struct.calcsize(_SCALARS[kind])
        return value

    metadata: dict[str, Any] = {}
    for _ in range(count):
        name = read(8)
        metadata[name.removeprefix("tokenizer.ggml.")] = read(read(4))
    return metadata


def make_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """Return a tokenizer with a vocabulary's tokens; words are split in one way for all."""
    tokens: list[str] = metadata["tokens"]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if metadata["model"] == "gpt2":
        merges = [tuple(merge.split(" ", 1)) for merge in metadata["merges"]]
        tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
        words = pre_tokenizers.Split(Regex(_WORDS), "isolated")
        to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, to_bytes])
        tokenizer.decoder = decoders.ByteLevel()
    else:
        scored = list(zip(tokens, metadata["scores"], strict=True))
        tokenizer = Tokenizer(models.Unigram(scored, unk_id=vocabulary["<unk>"], byte_fallback=True))
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
        to_space = decoders.Replace("▁", " ")
        tokenizer.decoder = decoders.Sequence([to_space, decoders.ByteFallback(), decoders.Fuse()])
    control = [token for token, kind in zip(tokens, metadata["token_type"], strict=True) if kind == 3]
    tokenizer.add_special_tokens(  # pyright: ignore[reportUnknownMemberType]
        [AddedToken(each, special=True, normalized=False) for each in control]
    )
    return tokenizer


def table(families: Sequence[Family] = FAMILIES) -> str:
    head = "| template of | rows | trainer tokens per sampled token | a turn ends at | tools by |"
    return "\n".join([head, "|---|---|---|---|---|", *(examine(family).row() for family in families)])


if __name__ == "__main__":
    before, _, after = DOCUMENT.read_text(encoding="utf-8").partition("<!-- table -->\n")
    DOCUMENT.write_text(f"{before}<!-- table -->\n{table()}\n", encoding="utf-8")
