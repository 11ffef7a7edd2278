"""The OpenAI SDK for Python."""

import io
import unittest

import openai
from common import MODELS, TOOL, PoolTest, release, text_of

HELLO = [{"role": "user", "content": "hello"}]
TOOLS = [{"type": "function", "function": TOOL}]


class OpenAI(PoolTest):
    def make(self, pool, **more):
        client = openai.OpenAI(**{"base_url": pool.origin + "/v1", "api_key": pool.key, **more})
        self.addCleanup(client.close)
        return client

    def test_chat(self):
        def ask(client, model):
            raw = client.chat.completions.with_raw_response.create(model="any", messages=HELLO)
            answer = raw.parse()
            self.assertEqual(answer.choices[0].message.content, text_of(model))
            self.assertEqual(answer.model, model)
            self.assertGreater(answer.usage.total_tokens, 0)
            self.assertEqual(raw.headers["x-proxy-model"], model)
            attempts.append(raw.headers["x-proxy-attempts"])

        attempts = []
        pool, client = self.rotates(ask)
        self.assertEqual(attempts, ["1", "2", "2", "2"])
        error = self.is_exhausted(
            pool, openai.InternalServerError,
            lambda: client.chat.completions.create(model="any", messages=HELLO),
        )
        self.assertEqual((error.status_code, error.code), (503, "free_quota_exhausted"))
        # A month away: clients would sleep it out, so they hear only that asking again is no use.
        self.assertNotIn("retry-after", error.response.headers)
        self.assertEqual(error.response.headers["x-should-retry"], "false")
        self.assertIn("exhausted; it will reset at", error.message)

    def test_streamed_chat(self):
        def ask(client, model):
            stream = client.chat.completions.create(
                model="any", messages=HELLO, stream=True, stream_options={"include_usage": True}
            )
            chunks = list(stream)
            text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
            self.assertEqual(text, text_of(model))
            self.assertEqual(chunks[-1].choices, [])
            self.assertEqual(chunks[-1].usage.completion_tokens, 4)

        pool, client = self.rotates(ask)
        self.is_exhausted(
            pool, openai.InternalServerError,
            lambda: client.chat.completions.create(model="any", messages=HELLO, stream=True),
        )

    def test_stream_arrives_event_by_event(self):
        client = self.make(self.pool())
        messages = [{"role": "user", "content": "standin:gate=openai"}]
        for chunk in client.chat.completions.create(model="any", messages=messages, stream=True):
            release("openai")
        self.assertEqual(chunk.choices[0].finish_reason, "stop")

    def test_cut_stream_raises(self):
        client = self.make(self.pool())
        messages = [{"role": "user", "content": "standin:cut"}]
        stream = client.chat.completions.create(model="any", messages=messages, stream=True)
        self.assertEqual(next(stream).choices[0].delta.content, "")
        with self.assertRaises(openai.APIConnectionError):
            list(stream)

    def test_tools(self):
        def ask(client, model):
            answer = client.chat.completions.create(model="any", messages=HELLO, tools=TOOLS)
            self.assertEqual(answer.choices[0].finish_reason, "tool_calls")
            call = answer.choices[0].message.tool_calls[0]
            self.assertEqual((call.function.name, call.function.arguments),
                             ("get_weather", '{"city":"Hangzhou"}'))

        self.rotates(ask)

    def test_streamed_tools_and_their_result(self):
        client = self.make(self.pool(quota=1))
        with client.chat.completions.stream(model="any", messages=HELLO, tools=TOOLS) as stream:
            message = stream.get_final_completion().choices[0].message
        self.assertEqual(message.tool_calls[0].function.arguments, '{"city":"Hangzhou"}')
        result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "fine"}
        call = {"role": "assistant", "content": None,
                "tool_calls": [message.tool_calls[0].model_dump(include={"id", "type", "function"})]}
        answer = client.chat.completions.create(
            model="any", messages=[*HELLO, call, result], tools=TOOLS
        )
        self.assertEqual(answer.choices[0].message.content, text_of(MODELS[1]))

    def test_completions(self):
        def ask(client, model):
            answer = client.completions.create(model="any", prompt="fn main")
            self.assertEqual(answer.choices[0].text, text_of(model))

        def stream(client, model):
            chunks = client.completions.create(model="any", prompt="fn main", stream=True)
            self.assertEqual("".join(c.choices[0].text for c in chunks), text_of(model))

        self.rotates(ask)
        self.rotates(stream)

    def test_embeddings_keep_their_model(self):
        model = "text-embedding-v4"

        def ask(client, model):
            # The SDK asks for base64 by itself, and unpacks it.
            answer = client.embeddings.create(model=model, input=["a", "b"])
            self.assertEqual([e.embedding for e in answer.data], [[0, 0.5, -0.25], [1, 0.5, -0.25]])
            self.assertEqual(answer.model, model)

        pool, client = self.rotates(ask, [("k1", model), ("k2", model)])
        self.is_exhausted(
            pool, openai.InternalServerError,
            lambda: client.embeddings.create(model=model, input="a", encoding_format="float"),
        )
        # The pool's models are untouched.
        answer = client.chat.completions.create(model="any", messages=HELLO)
        self.assertEqual(answer.model, MODELS[0])

    def test_responses(self):
        def ask(client, model):
            answer = client.responses.create(model="any", input="hello")
            self.assertEqual(answer.output_text, text_of(model))
            self.assertEqual(answer.usage.output_tokens, 4)

        pool, client = self.rotates(ask)
        error = self.is_exhausted(
            pool, openai.InternalServerError,
            lambda: client.responses.create(model="any", input="hello"),
        )
        # Codex would wait it out, a month long and without a word.
        self.assertNotIn("retry-after", error.response.headers)

    def test_streamed_responses(self):
        def ask(client, model):
            with client.responses.stream(model="any", input="hello") as stream:
                text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
                final = stream.get_final_response()
            self.assertEqual((text, final.output_text), (text_of(model), text_of(model)))
            self.assertEqual(final.status, "completed")

        self.rotates(ask)

    def test_responses_with_tools(self):
        tools = [{"type": "function", "strict": False, **TOOL}]

        def ask(client, model):
            call = client.responses.create(model="any", input="hello", tools=tools).output[0]
            self.assertEqual((call.type, call.arguments), ("function_call", '{"city":"Hangzhou"}'))

        def stream(client, model):
            events = client.responses.create(model="any", input="hello", tools=tools, stream=True)
            *_, last = events
            self.assertEqual(last.response.output[0].name, "get_weather")

        self.rotates(ask)
        self.rotates(stream)

    def test_a_response_stays_with_its_key(self):
        pool = self.pool(quota=1)
        client = self.make(pool)
        first = client.responses.create(model="any", input="1")
        with client.responses.create(model="any", input="2", stream=True) as stream:
            second = next(stream).response
            list(stream)
        self.assertEqual(client.responses.create(model="any", input="3").model, MODELS[0])
        self.assertEqual([key for key, _ in pool.slots()], ["k1", "k1", "k2"])
        pool.restart()
        client = self.make(pool)
        for response in (first, second):
            self.assertEqual(client.responses.retrieve(response.id).id, response.id)
        self.assertEqual([call["key"] for call in pool.calls()[-2:]], ["k1", "k1"])
        # The first key has nothing left for a follow-up, and the other does not know of it.
        follow_up = {"model": "any", "input": "4", "previous_response_id": first.id}
        calls = len(pool.calls())
        error = self.is_exhausted(
            pool, openai.InternalServerError, lambda: client.responses.create(**follow_up)
        )
        self.assertEqual(error.code, "free_quota_exhausted")
        self.assertEqual({call["key"] for call in pool.calls()[calls:]} - {"k1"}, set())

    def test_files_and_batches_stay_with_their_key(self):
        pool = self.pool(quota=1)
        client = self.make(pool)
        file = client.files.create(file=("in.jsonl", io.BytesIO(b'{"a":1}\n')), purpose="batch")
        self.assertEqual((file.filename, file.bytes), ("in.jsonl", 8))
        for _ in range(3):
            client.chat.completions.create(model="any", messages=HELLO)
        self.assertEqual(pool.slots()[-1][0], "k2")
        self.assertEqual(client.files.retrieve(file.id).purpose, "batch")
        self.assertEqual(client.files.content(file.id).read(), b'{"a":1}\n')
        batch = client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        self.assertEqual(client.batches.retrieve(batch.id).input_file_id, file.id)
        client.files.delete(file.id)
        upload, *rest = [c for c in pool.calls() if "/chat/" not in c["path"]]
        self.assertEqual((upload["key"], {c["key"] for c in rest if "/files" in c["path"]}),
                         ("k1", {"k1"}))

    def test_models(self):
        client = self.make(self.pool())
        models = client.models.list().data
        self.assertEqual([model.id for model in models], MODELS)
        model = client.models.retrieve(MODELS[1])
        self.assertEqual((model.id, model.object), (MODELS[1], "model"))
        self.assertGreater(model.created, 1_600_000_000)
        with self.assertRaises(openai.NotFoundError):
            client.models.retrieve("no-such-model")

    def test_wrong_key(self):
        pool = self.pool()
        client = self.make(pool, api_key="wrong")
        for ask in (
            lambda: client.chat.completions.create(model="any", messages=HELLO),
            lambda: client.responses.create(model="any", input="hello"),
            lambda: client.embeddings.create(model="m", input="a"),
            lambda: client.models.list(),
        ):
            with self.assertRaises(openai.AuthenticationError) as caught:
                ask()
            self.assertEqual(caught.exception.code, "invalid_api_key")
        self.assertEqual(pool.calls(), [])

    def test_dashscopes_own_address(self):
        """A client that only swaps the host."""
        pool = self.pool()
        client = self.make(pool, base_url=pool.origin + "/compatible-mode/v1")
        answer = client.chat.completions.create(model="any", messages=HELLO)
        self.assertEqual(answer.model, MODELS[0])

    def test_more_output_than_a_model_writes(self):
        def ask(client, stream, **more):
            raw = client.chat.completions.with_raw_response.create(
                model="any", messages=HELLO, stream=stream, **more
            )
            if stream:
                list(raw.parse())
            return raw.headers["x-proxy-model"], raw.headers.get("x-proxy-adjusted")

        for stream in (False, True):
            with self.subTest(stream=stream):
                pool = self.pool(limits={MODELS[0]: {"max_output": 8192},
                                         MODELS[1]: {"max_output": 16384}})
                client = self.make(pool)
                self.assertEqual(ask(client, stream, max_tokens=16000), (MODELS[1], None))
                for name in ("max_tokens", "max_completion_tokens"):
                    self.assertEqual(ask(client, stream, **{name: 64000}),
                                     (MODELS[1], f"{name}=16384"))
                self.assertEqual(ask(client, stream, max_tokens=4096), (MODELS[0], None))
                # Each model has refused once, and no request was sent twice to know it again.
                self.assertEqual([(call["model"], call["status"]) for call in pool.calls()], [
                    (MODELS[0], 400), (MODELS[1], 200), (MODELS[1], 400), (MODELS[1], 200),
                    (MODELS[1], 200), (MODELS[0], 200),
                ])

    def test_prefer(self):
        """The client's model first, on every key; a model outside the pool is ignored."""
        pool = self.pool(quota=1, env={"MODEL_SELECTION": "prefer"})
        client = self.make(pool)
        for asked, served in [(1, 1), (1, 1), (1, 0)]:
            answer = client.chat.completions.create(model=MODELS[asked], messages=HELLO)
            self.assertEqual(answer.model, MODELS[served])
        self.assertEqual(client.chat.completions.create(model="gpt-9", messages=HELLO).model,
                         MODELS[0])


class AsyncOpenAI(unittest.IsolatedAsyncioTestCase, PoolTest):
    async def test_many_at_once(self):
        import asyncio

        pool = self.pool(quota=5)
        async with openai.AsyncOpenAI(base_url=pool.origin + "/v1", api_key=pool.key) as client:

            async def ask():
                stream = await client.chat.completions.create(
                    model="any", messages=HELLO, stream=True
                )
                return "".join([c.choices[0].delta.content or "" async for c in stream])

            texts = await asyncio.gather(*[ask() for _ in range(20)])
        self.assertEqual(sorted(texts), sorted([text_of(m) for m in MODELS] * 10))


if __name__ == "__main__":
    unittest.main()
