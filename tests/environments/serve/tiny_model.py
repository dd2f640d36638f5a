"""A tiny random transformer, and a model server that reports its log-probabilities.

    python tiny_model.py PORT URL

The server passes the completions of the one at URL on: the same tokens, each with the log-probability that
the tiny model gives it. A script decides what is said, and for a trainer of the tiny model it is on-policy.
"""

import json
import sys
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch
from transformers import LlamaConfig, LlamaForCausalLM

EMBEDDED_VOCABULARY = 2048


def tiny_model():
    """The same weights in every process."""
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=EMBEDDED_VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=8192,
    )  # fmt: skip
    return LlamaForCausalLM(shape).double()


def scored(model, prompt, sampled):
    """Each sampled token's log-probability after the prompt and the ones before it."""
    with torch.no_grad():
        log_p = torch.log_softmax(model(torch.tensor([prompt + sampled])).logits[0], dim=-1)
    return [log_p[len(prompt) + place - 1, token].item() for place, token in enumerate(sampled)]


def handler(model, url):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            try:
                self.reply(self.behind())
            except urllib.error.HTTPError as error:  # of a path that only other kinds of servers have
                self.send_error(error.code)

        def do_POST(self):
            answer = self.behind(self.rfile.read(int(self.headers["Content-Length"])))
            choice = answer["choices"][0]
            logprobs = scored(model, answer["prompt_token_ids"], choice["token_ids"])
            for entry, logprob in zip(choice["logprobs"]["content"], logprobs, strict=True):
                entry["logprob"] = logprob
            self.reply(answer)

        def behind(self, body=None):
            headers = {"Content-Type": "application/json"}
            return json.load(urllib.request.urlopen(urllib.request.Request(url + self.path, body, headers)))

        def reply(self, answer):
            body = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    return Handler


if __name__ == "__main__":
    torch.set_num_threads(1)
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), handler(tiny_model(), sys.argv[2])).serve_forever()
