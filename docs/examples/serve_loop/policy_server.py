"""A model server for one tiny transformer, in SGLang's words: ids in, ids, log-probabilities and a weight version out.

python policy_server.py PORT MODEL CHECKPOINTS

Before each answer it looks for a newer checkpoint: the trainer saves `CHECKPOINTS/step_N`.
"""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM


class Policy:
    """The newest weights, one request at a time."""

    def __init__(self, model, checkpoints):
        self._checkpoints = Path(checkpoints)
        self._lock = threading.Lock()
        self._load(model, 0)

    def answer(self, ids, params):
        """A completion of a row, all of it by one version of the weights."""
        with self._lock:
            newest = max(self._saved(), default=0)
            if newest > self._step:
                self._load(self._checkpoints / f"step_{newest}", newest)
            sampled, logprobs = self._sample(ids, params)
            version = f"step-{self._step}"
        stopped = sampled[-1] in params["stop_token_ids"]
        finish = {"type": "stop", "matched": sampled[-1]} if stopped else {"type": "length"}
        return {
            "output_ids": sampled,
            "meta_info": {
                "finish_reason": finish,
                "prompt_tokens": len(ids),
                "completion_tokens": len(sampled),
                "weight_version": version,
                "output_token_logprobs": [
                    [logprob, token, None] for logprob, token in zip(logprobs, sampled, strict=True)
                ],
            },
        }

    @torch.inference_mode()
    def _sample(self, ids, params):
        generator = torch.Generator().manual_seed(params["sampling_seed"])
        new, past, sampled, logprobs = torch.tensor([ids]), None, [], []
        while len(sampled) < params["max_new_tokens"]:
            output = self._model(new, past_key_values=past, use_cache=True)
            past = output.past_key_values
            log_p = output.logits[0, -1].float().log_softmax(dim=-1)
            token = torch.multinomial(log_p.exp(), 1, generator=generator)
            sampled.append(token.item())
            logprobs.append(log_p[token].item())
            if sampled[-1] in params["stop_token_ids"]:
                break
            new = token[None]
        return sampled, logprobs

    def _saved(self):
        # The tokenizer is what the trainer writes last.
        for file in self._checkpoints.glob("step_*/tokenizer_config.json"):
            yield int(file.parent.name.removeprefix("step_"))

    def _load(self, folder, step):
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
        self._step = step


def handler(policy):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            if self.path == "/v1/models":
                self.reply(200, {"data": [{"id": "tiny", "owned_by": "sglang", "max_model_len": 1024}]})
            else:
                self.reply(404, {"message": "no such page"})

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path == "/generate":
                self.reply(200, policy.answer(body["input_ids"], body["sampling_params"]))
            else:
                self.reply(404, {"message": "no such page"})

        def reply(self, status, answer):
            text = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_):
            pass

    return Handler


if __name__ == "__main__":
    torch.set_num_threads(1)
    port, model, checkpoints = sys.argv[1:]
    server = ThreadingHTTPServer(("127.0.0.1", int(port)), handler(Policy(model, checkpoints)))
    server.serve_forever()
