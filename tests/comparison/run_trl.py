"""The TRL versions, run: `python run_trl.py [NAME…]` where trl, torch and openai are installed.

Two real steps of `GRPOTrainer` on the CPU, over a random model of two layers. What it samples is replaced by
the words of a script, as tokens, so that tools are called and rewards vary; nothing else of the trainer is
touched. Judge and customer are `second_model.py`.
"""

import importlib
import json
import os
import re
import sys
import tempfile
import threading
from pathlib import Path

import torch
import trl
from second_model import serving
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

ROOT = Path(__file__).resolve().parents[2]
TOKENIZER = ROOT / "environments/policy/rendering/embedded_tokenizer/tokenizer.json"
TEMPLATE = Path(trl.__file__).parent / "chat_templates/qwen3.jinja"
GUESSES = ["crane", "plant", "river", "stone", "grape"]


def call(name, **arguments):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def next_words(text, sibling):
    """What the scripted agent says after a rendered conversation."""
    said = text.count("<|im_start|>assistant") - 1
    a, b, c = (int(number) for number in (re.findall(r"(\d+) \* (\d+) \+ (\d+)", text) or [(0, 0, 0)])[-1])
    if '"hand_in"' in text:
        return call("hand_in", draft=f"Draft {said}.") if said < 3 else "Done."
    if '"guess"' in text:
        return (
            call("guess", word=GUESSES[(said + sibling) % 5]) if "over" not in text and said < 4 else "Done."
        )
    if '"cancel_order"' in text:
        steps = [call("say_to_customer", text="Which one?"), call("cancel_order", order_id="17")]
        return steps[said] if said < 2 and not sibling % 2 else "Done."
    if '"multiply"' in text:
        return call("multiply", a=a, b=b) if not said else str(a * b + c + sibling % 2)
    return f"\\boxed{{{a * b + c + sibling % 2}}}"


def run(name):
    version = importlib.import_module(name)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(TOKENIZER), eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    tokenizer.chat_template = TEMPLATE.read_text()
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, head_dim=16, max_position_embeddings=4096,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "output_dir": folder, "max_steps": 2, "num_generations": 4, "per_device_train_batch_size": 4,
            "max_completion_length": 1024, "report_to": "none", "use_cpu": True, "logging_steps": 1,
            "disable_tqdm": True, **getattr(version, "CONFIG", {}),
        }  # fmt: skip
        trainer = trl.GRPOTrainer(
            model=Qwen3ForCausalLM(config),
            processing_class=tokenizer,
            args=trl.GRPOConfig(**settings),
            **version.TRAINER,
        )

        def sampled(prompt_ids, *rest, **more):
            words = [next_words(tokenizer.decode(ids), sibling) for sibling, ids in enumerate(prompt_ids)]
            return [tokenizer.encode(text + "<|im_end|>", add_special_tokens=False) for text in words], None

        trainer._generate_single_turn = sampled
        trainer.train()
    history = [entry for entry in trainer.state.log_history if "reward" in entry]
    for entry in history:
        shown = {
            key: value
            for key, value in entry.items()
            if key in ("reward", "reward_std", "tools/call_frequency")
        }
        print(name, {key: round(float(value), 3) for key, value in shown.items()}, flush=True)


if __name__ == "__main__":
    torch.manual_seed(0)
    sys.path.insert(0, str(Path(__file__).parent / "trl_envs"))
    with serving() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        os.environ["SECOND_MODEL_URL"] = f"http://127.0.0.1:{server.server_port}/v1"
        for name in sys.argv[1:] or ["maths", "shop", "word_game", "rubric", "judge"]:
            run(name)
        server.shutdown()
