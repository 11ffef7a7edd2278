"""What the Python suites share: pools from the lab (`LAB`, its address), and what must hold."""

import json
import os
import re
import time
import unittest
import urllib.request

MODELS = ["qwen-max", "qwen-plus"]
TOOL = {
    "name": "get_weather",
    "description": "The weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}},
                   "required": ["city"]},
}
ALL_SLOTS = [("k1", "qwen-max"), ("k1", "qwen-plus"), ("k2", "qwen-max"), ("k2", "qwen-plus")]


def text_of(model):
    return f"Served by {model}."


def lab(method, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(os.environ["LAB"] + path, data, method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


class Pool:
    """A proxy of its own: 2 keys x 2 models, `quota` successes in each slot."""

    def __init__(self, **spec):
        made = lab("POST", "/pools", spec)
        self.id, self.key = made["id"], made["key"]
        self.at(made["address"])

    def at(self, address):
        self.address, self.origin = address, f"http://{address}"

    def restart(self):
        self.at(lab("POST", f"/pools/{self.id}/restart", {})["address"])

    def stop(self):
        return lab("DELETE", f"/pools/{self.id}")["code"]

    def calls(self):
        return lab("GET", f"/pools/{self.id}/calls")

    def slots(self, status=200):
        """(key, model) of the calls that were answered so."""
        return [(c["key"], c["model"]) for c in self.calls() if c["status"] == status]

    def log(self):
        return lab("GET", f"/pools/{self.id}/log")

    def refusals(self, status):
        """How often clients were answered so, by the proxy's log, which follows the answer."""
        deadline, found = time.monotonic() + 5, 0
        while not found and time.monotonic() < deadline:
            time.sleep(0.1)
            found = len(re.findall(rf" (?:request|refused) .*\bstatus={status}\b", self.log()))
        return found

    def adjusted(self):
        """What was lowered, request by request, once the log has a line for each that was served."""
        deadline, served = time.monotonic() + 5, len(self.slots())
        while time.monotonic() < deadline and self.log().count(" request id=") < served:
            time.sleep(0.1)
        return re.findall(r' request id=.* adjusted="([^"]*)"', self.log())


def release(gate):
    lab("POST", f"/gates/{gate}", {})


class PoolTest(unittest.TestCase):
    def pool(self, **spec):
        pool = Pool(**spec)
        self.addCleanup(lambda: self.assertEqual(pool.stop(), 0, "exit code of the proxy"))
        return pool

    def rotates(self, ask, slots=ALL_SLOTS, make=None):
        """`ask(client, model)` works once in every slot, in their order, each reached through the
        exhaustion of the one before. `make(pool)` makes the client. Returns pool and client, with
        nothing left."""
        pool = self.pool(quota=1)
        client = (make or self.make)(pool)
        for _, model in slots:
            ask(client, model)
        self.assertEqual(pool.slots(), slots)
        self.assertEqual(pool.slots(403), slots[:-1])
        return pool, client

    def is_exhausted(self, pool, error, ask):
        """With nothing left, `ask` raises `error`, and the client has asked exactly once."""
        with self.assertRaises(error) as caught:
            ask()
        self.assertEqual(pool.refusals(503), 1, "requests of the client that got 503")
        return caught.exception
