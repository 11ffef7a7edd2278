"""DashScope's own SDK for Python: the functions of 1.x, and the client of 2.x."""

import json
import os
import tempfile
import unittest
import warnings

import dashscope
from common import MODELS, PoolTest, text_of

HELLO = [{"role": "user", "content": "hello"}]
IMAGE = "wanx-v1"


class Functions(PoolTest):
    def make(self, pool):
        dashscope.base_http_api_url = pool.origin + "/api/v1"
        dashscope.api_key = pool.key

    def is_used_up(self, pool, answer):
        self.assertEqual((answer.status_code, answer.code), (503, "free_quota_exhausted"))
        self.assertEqual(pool.refusals(503), 1)

    def test_text(self):
        def ask(_, model):
            answer = dashscope.Generation.call(MODELS[0], messages=HELLO, result_format="message")
            self.assertEqual(answer.status_code, 200, answer)
            self.assertEqual(answer.output.choices[0].message.content, text_of(model))
            self.assertEqual(answer.usage.output_tokens, 4)

        pool, _ = self.rotates(ask)
        self.is_used_up(pool, dashscope.Generation.call(MODELS[0], messages=HELLO))

    def test_streamed_text(self):
        def ask(_, model):
            frames = list(dashscope.Generation.call(
                MODELS[0], messages=HELLO, result_format="message", stream=True,
                incremental_output=True,
            ))
            self.assertEqual({frame.status_code for frame in frames}, {200}, frames)
            text = "".join(frame.output.choices[0].message.content for frame in frames)
            self.assertEqual(text, text_of(model))

        # The stand-in says it is exhausted in the first event of a 200.
        pool, _ = self.rotates(ask)
        frames = list(dashscope.Generation.call(MODELS[0], messages=HELLO, stream=True))
        self.assertEqual(len(frames), 1)
        self.is_used_up(pool, frames[0])

    def test_a_model_outside_the_pool_stays(self):
        def ask(_, model):
            answer = dashscope.Generation.call(model, messages=HELLO)
            self.assertEqual(answer.output.text, text_of(model))

        self.rotates(ask, [("k1", "qwen-long"), ("k2", "qwen-long")])

    def test_image_task_stays_with_its_key(self):
        pool = self.pool(quota=1)
        self.make(pool)
        tasks = []
        for key in ("k1", "k2"):
            task = dashscope.ImageSynthesis.async_call(IMAGE, "a cat", n=1)
            self.assertEqual(task.status_code, 200, task)
            tasks.append(task)
            self.assertEqual(pool.slots()[-1], (key, IMAGE))
        self.is_used_up(pool, dashscope.ImageSynthesis.async_call(IMAGE, "a cat"))
        pool.restart()
        self.make(pool)
        for task, key in zip(tasks, ("k1", "k2")):
            self.assertEqual(dashscope.ImageSynthesis.fetch(task).output.task_status, "RUNNING")
            done = dashscope.ImageSynthesis.wait(task)
            self.assertEqual(done.output.task_status, "SUCCEEDED")
            self.assertEqual(len(done.output.results), 1)
            self.assertEqual(pool.calls()[-1]["key"], key)

    def test_embeddings_and_reranking_keep_their_model(self):
        def embed(_, model):
            answer = dashscope.TextEmbedding.call(model, ["a", "b"])
            self.assertEqual([e["embedding"] for e in answer.output["embeddings"]],
                             [[0, 0.5], [1, 0.5]])

        def rerank(_, model):
            answer = dashscope.TextReRank.call(model, query="a", documents=["a", "b"])
            self.assertEqual([r.index for r in answer.output.results], [0, 1])

        for ask, model in ((embed, "text-embedding-v4"), (rerank, "gte-rerank-v2")):
            self.rotates(ask, [("k1", model), ("k2", model)])

    def test_tokenizer(self):
        pool = self.pool()
        self.make(pool)
        answer = dashscope.Tokenization.call(MODELS[0], prompt="hello")
        self.assertEqual((answer.status_code, answer.usage["input_tokens"]), (200, 3))

    def test_files_stay_with_their_key(self):
        pool = self.pool(quota=1)
        self.make(pool)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "in.txt")
            with open(path, "w") as file:
                file.write("hello")
            uploaded = dashscope.Files.upload(path, purpose="inference")
        self.assertEqual(uploaded.status_code, 200, uploaded)
        id = uploaded.output["uploaded_files"][0]["file_id"]
        for _ in range(3):
            dashscope.Generation.call(MODELS[0], messages=HELLO)
        self.assertEqual(pool.slots()[-1][0], "k2")
        self.assertEqual(dashscope.Files.get(id).output["size"], 5)
        self.assertEqual(pool.calls()[-1]["key"], "k1")

    def test_wrong_key(self):
        pool = self.pool()
        self.make(pool)
        dashscope.api_key = "wrong"
        for answer in (
            dashscope.Generation.call(MODELS[0], messages=HELLO),
            next(iter(dashscope.Generation.call(MODELS[0], messages=HELLO, stream=True))),
            dashscope.ImageSynthesis.async_call(IMAGE, "a cat"),
            dashscope.TextEmbedding.call("text-embedding-v4", "a"),
        ):
            self.assertEqual((answer.status_code, answer.code), (401, "invalid_api_key"))
        self.assertEqual(pool.calls(), [])


@unittest.skipUnless(hasattr(dashscope, "Client"), "dashscope before 2.0")
class Client(PoolTest):
    PATHS = {"native": "/api/v1", "openai": "/compatible-mode/v1", "anthropic": "/apps/anthropic"}

    def make(self, pool, protocol="native", key=None):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            client = dashscope.Client(api_key=key or pool.key, protocol=protocol,
                                      base_url=pool.origin + self.PATHS[protocol])
        self.addCleanup(client.close)
        return client

    def test_chat_in_every_protocol(self):
        def ask(client, model):
            answer = client.chat.completions.create(model=MODELS[0], messages=HELLO)
            self.assertIn(text_of(model), json.dumps(answer, default=vars))

        def stream(client, model):
            chunks = client.chat.completions.create(model=MODELS[0], messages=HELLO, stream=True)
            text = json.dumps([str(chunk) for chunk in chunks])
            self.assertIn(model, text)

        for protocol in self.PATHS:
            for how in (ask, stream):
                with self.subTest(protocol=protocol, how=how.__name__):
                    pool, client = self.rotates(how, make=lambda p: self.make(p, protocol))
                    error = self.is_exhausted(pool, dashscope.v2.errors.APIStatusError,
                                              lambda: how(client, MODELS[0]))
                    self.assertEqual(error.status_code, 503)

    def test_wrong_key(self):
        pool = self.pool()
        for protocol in self.PATHS:
            client = self.make(pool, protocol, key="wrong")
            with self.subTest(protocol=protocol):
                with self.assertRaises(dashscope.v2.errors.AuthenticationError):
                    client.chat.completions.create(model=MODELS[0], messages=HELLO)
        self.assertEqual(pool.calls(), [])


if __name__ == "__main__":
    unittest.main()
