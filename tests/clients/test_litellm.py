"""litellm as a client, over the OpenAI and the Anthropic protocol."""

import os
import unittest

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # no download at import

import litellm
from common import MODELS, TOOL, PoolTest, text_of

litellm.suppress_debug_info = True

HELLO = [{"role": "user", "content": "hello"}]


class LiteLLM(PoolTest):
    def make(self, pool):
        openai = {"model": "openai/any", "api_base": pool.origin + "/v1", "api_key": pool.key}
        anthropic = {"model": "anthropic/any", "api_base": pool.origin, "api_key": pool.key}
        return {"openai": openai, "anthropic": anthropic}

    def in_both(self, ask):
        """Like `rotates`, by either protocol. Returns their pools and clients."""
        done = {}
        for protocol in ("openai", "anthropic"):
            with self.subTest(protocol):
                pool, client = self.rotates(lambda client, model: ask(client[protocol], model))
                done[protocol] = pool, client[protocol]
        return done

    def test_chat(self):
        def ask(client, model):
            answer = litellm.completion(messages=HELLO, **client)
            self.assertEqual(answer.choices[0].message.content, text_of(model))

        # For Anthropic's litellm looks at the error's type as well.
        errors = {"openai": litellm.ServiceUnavailableError,
                  "anthropic": (litellm.ServiceUnavailableError, litellm.InternalServerError)}
        for protocol, (pool, client) in self.in_both(ask).items():
            with self.subTest(protocol):
                self.is_exhausted(pool, errors[protocol],
                                  lambda: litellm.completion(messages=HELLO, **client))

    def test_streamed_chat(self):
        def ask(client, model):
            stream = litellm.completion(messages=HELLO, stream=True, **client)
            text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
            self.assertEqual(text, text_of(model))

        self.in_both(ask)

    def test_tools(self):
        def ask(client, model):
            tools = [{"type": "function", "function": TOOL}]
            answer = litellm.completion(messages=HELLO, tools=tools, **client)
            call = answer.choices[0].message.tool_calls[0].function
            self.assertEqual(call.name, "get_weather")
            self.assertIn("Hangzhou", call.arguments)

        self.in_both(ask)

    def test_embeddings(self):
        model = "text-embedding-v4"

        def ask(client, model):
            client = client["openai"] | {"model": f"openai/{model}"}
            answer = litellm.embedding(input=["a", "b"], encoding_format="float", **client)
            self.assertEqual(answer.data[1]["embedding"], [1, 0.5, -0.25])

        self.rotates(ask, [("k1", model), ("k2", model)])

    def test_responses(self):
        def ask(client, model):
            answer = litellm.responses(input="hello", **client["openai"])
            self.assertEqual(answer.output[0].content[0].text, text_of(model))

        self.rotates(ask)

    def test_wrong_key(self):
        pool = self.pool()
        for client in self.make(pool).values():
            with self.assertRaises(litellm.AuthenticationError):
                litellm.completion(messages=HELLO, **client | {"api_key": "wrong"})
        self.assertEqual(pool.calls(), [])


if __name__ == "__main__":
    unittest.main()
