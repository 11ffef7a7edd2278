"""The Anthropic SDK for Python."""

import unittest

import anthropic
from common import MODELS, TOOL, PoolTest, release, text_of

ASK = {"model": "any", "max_tokens": 64, "messages": [{"role": "user", "content": "hello"}]}
TOOLS = [{"name": TOOL["name"], "description": TOOL["description"],
          "input_schema": TOOL["parameters"]}]


class Anthropic(PoolTest):
    def make(self, pool, **more):
        client = anthropic.Anthropic(**{"base_url": pool.origin, "api_key": pool.key, **more})
        self.addCleanup(client.close)
        return client

    def test_messages(self):
        def ask(client, model):
            raw = client.messages.with_raw_response.create(**ASK)
            answer = raw.parse()
            self.assertEqual(answer.content[0].text, text_of(model))
            self.assertEqual((answer.model, answer.stop_reason), (model, "end_turn"))
            self.assertEqual(raw.headers["x-proxy-model"], model)
            attempts.append(raw.headers["x-proxy-attempts"])

        attempts = []
        pool, client = self.rotates(ask)
        self.assertEqual(attempts, ["1", "2", "2", "2"])
        error = self.is_exhausted(
            pool, anthropic.InternalServerError, lambda: client.messages.create(**ASK)
        )
        self.assertEqual(error.status_code, 503)
        self.assertEqual(error.body["error"]["type"], "api_error")

    def test_streamed_messages(self):
        def ask(client, model):
            with client.messages.stream(**ASK) as stream:
                self.assertEqual("".join(stream.text_stream), text_of(model))
                final = stream.get_final_message()
            self.assertEqual((final.model, final.usage.output_tokens), (model, 4))

        def stop():
            with client.messages.stream(**ASK):
                pass

        pool, client = self.rotates(ask)
        self.is_exhausted(pool, anthropic.InternalServerError, stop)

    def test_stream_arrives_event_by_event(self):
        client = self.make(self.pool())
        messages = [{"role": "user", "content": "standin:gate=anthropic"}]
        # The SDK keeps DashScope's leading ping to itself.
        release("anthropic")
        for event in client.messages.create(**ASK | {"messages": messages}, stream=True):
            release("anthropic")
        self.assertEqual(event.type, "message_stop")

    def test_what_a_model_cannot_take(self):
        picture = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
        shown = [{"role": "user", "content": [{"type": "image", "source": picture}]}]
        thinking = {"type": "enabled", "budget_tokens": 16000}
        for kind, value, more in [
            ("text_only", True, {"messages": shown}),
            ("max_output", 8192, {"max_tokens": 20000}),
            ("thinking_budget", 0, {"max_tokens": 20000, "thinking": thinking}),
            ("no_tools", True, {"tools": TOOLS}),
        ]:
            for stream in (False, True):
                with self.subTest(kind, stream=stream):
                    pool = self.pool(limits={MODELS[0]: {kind: value}})
                    client = self.make(pool)
                    for _ in range(2):
                        raw = client.messages.with_raw_response.create(
                            **ASK | more, stream=stream
                        )
                        self.assertEqual(raw.headers["x-proxy-model"], MODELS[1])
                        self.assertNotIn("x-proxy-adjusted", raw.headers)
                        if stream:
                            list(raw.parse())
                    self.assertEqual(client.messages.create(**ASK).model, MODELS[0])
                    self.assertEqual([call["status"] for call in pool.calls()],
                                     [400, 200, 200, 200])

    def test_tools(self):
        def ask(client, model):
            answer = client.messages.create(**ASK, tools=TOOLS)
            self.assertEqual(answer.stop_reason, "tool_use")
            self.assertEqual(answer.content[0].input, {"city": "Hangzhou"})

        def stream(client, model):
            with client.messages.stream(**ASK, tools=TOOLS) as stream:
                answer = stream.get_final_message()
            self.assertEqual(answer.content[0].input, {"city": "Hangzhou"})

        self.rotates(ask)
        self.rotates(stream)

    def test_tool_result(self):
        client = self.make(self.pool(quota=1))
        call = client.messages.create(**ASK, tools=TOOLS).content[0]
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "fine"}
        messages = [*ASK["messages"], {"role": "assistant", "content": [call.model_dump()]},
                    {"role": "user", "content": [result]}]
        answer = client.messages.create(**ASK | {"messages": messages}, tools=TOOLS)
        self.assertEqual(answer.content[0].text, text_of(MODELS[1]))

    def test_count_tokens(self):
        pool = self.pool(quota=1)
        client = self.make(pool)
        ask = {"model": "any", "messages": ASK["messages"]}
        for _ in range(3):
            self.assertGreater(client.messages.count_tokens(**ask).input_tokens, 0)
        self.assertEqual([c["status"] for c in pool.calls()], [200] * 3)
        for model in MODELS * 2:
            self.assertEqual(client.messages.create(**ASK).model, model)
        with self.assertRaises(anthropic.InternalServerError):
            client.messages.create(**ASK)
        # Nothing is left, so the proxy estimates by itself.
        self.assertGreater(client.messages.count_tokens(**ask).input_tokens, 0)

    def test_models(self):
        client = self.make(self.pool())
        self.assertEqual([model.id for model in client.models.list()], MODELS)
        model = client.models.retrieve(MODELS[0])
        self.assertEqual((model.id, model.type, model.display_name),
                         (MODELS[0], "model", MODELS[0]))
        self.assertGreater(model.created_at.year, 2020)
        with self.assertRaises(anthropic.NotFoundError):
            client.models.retrieve("no-such-model")

    def test_wrong_key(self):
        pool = self.pool()
        for client in (
            self.make(pool, api_key="wrong"),
            self.make(pool, api_key=None, auth_token="wrong"),
        ):
            for ask in (
                lambda: client.messages.create(**ASK),
                lambda: client.messages.count_tokens(model="any", messages=ASK["messages"]),
                lambda: client.models.list(),
            ):
                with self.assertRaises(anthropic.AuthenticationError) as caught:
                    ask()
                self.assertEqual(caught.exception.body["error"]["type"], "authentication_error")
        self.assertEqual(pool.calls(), [])

    def test_bearer_token_and_dashscopes_own_address(self):
        pool = self.pool()
        client = self.make(pool, base_url=pool.origin + "/apps/anthropic", api_key=None,
                           auth_token=pool.key)
        self.assertEqual(client.messages.create(**ASK).model, MODELS[0])
        self.assertEqual([model.id for model in client.models.list()], MODELS)


if __name__ == "__main__":
    unittest.main()
