// The OpenAI SDK for JavaScript.

import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout } from "node:timers/promises";

import OpenAI from "openai";
import { MODELS, TOOL, pool, release, rotates, textOf } from "./common.mjs";

const messages = [{ role: "user", content: "hello" }];
const make = (mine, more) => new OpenAI({ baseURL: `${mine.origin}/v1`, apiKey: mine.key, ...more });
const inEverySlot = (name, ask, slots) =>
  test(name, (t) => rotates(t, make, ask, OpenAI.InternalServerError, slots));

let first = true;

inEverySlot("chat", async (client, model) => {
  const asked = client.chat.completions.create({ model: "any", messages });
  const { data, response } = await asked.withResponse();
  assert.equal(data.choices[0].message.content, textOf(model));
  assert.equal(response.headers.get("x-proxy-model"), model);
  assert.equal(response.headers.get("x-proxy-attempts"), data.model === MODELS[0] && first ? "1" : "2");
  first = false;
});

inEverySlot("streamed chat", async (client, model) => {
  const stream_options = { include_usage: true };
  const asked = { model: "any", messages, stream: true, stream_options };
  let text = "";
  let usage = null;
  for await (const chunk of await client.chat.completions.create(asked)) {
    text += chunk.choices[0]?.delta.content ?? "";
    usage = chunk.usage;
  }
  assert.equal(text, textOf(model));
  assert.equal(usage.completion_tokens, 4);
});

test("a stream arrives event by event", async (t) => {
  const client = make(await pool(t));
  const gated = [{ role: "user", content: "standin:gate=node-openai" }];
  const asked = { model: "any", messages: gated, stream: true };
  let last;
  for await (const chunk of await client.chat.completions.create(asked)) {
    last = chunk;
    await release("node-openai");
  }
  assert.equal(last.choices[0].finish_reason, "stop");
});

test("a client that leaves a stream ends the call to DashScope", async (t) => {
  const mine = await pool(t);
  const client = make(mine);
  const gated = [{ role: "user", content: "standin:gate=node-left" }];
  const stream = await client.chat.completions.create({ model: "any", messages: gated, stream: true });
  for await (const _ of stream) break;
  await setTimeout(2000);
  // The stand-in learns of it when it writes; a second write meets the reset.
  for (let n = 0; n < 6; n++) await release("node-left");
  const deadline = Date.now() + 5000;
  while (!(await mine.calls())[0].left) assert.ok(Date.now() < deadline, "the call goes on");
});

const tools = [{ type: "function", function: TOOL }];

inEverySlot("tools", async (client) => {
  const answer = await client.chat.completions.create({ model: "any", messages, tools });
  assert.equal(answer.choices[0].message.tool_calls[0].function.arguments, '{"city":"Hangzhou"}');
});

inEverySlot("streamed tools", async (client) => {
  const stream = client.chat.completions.stream({ model: "any", messages, tools });
  const { message } = (await stream.finalChatCompletion()).choices[0];
  assert.equal(message.tool_calls[0].function.arguments, '{"city":"Hangzhou"}');
});

inEverySlot(
  "embeddings keep their model",
  async (client, model) => {
    const asked = { model: "text-embedding-v4", input: ["a", "b"] };
    const answer = await client.embeddings.create(asked);
    assert.deepEqual(answer.data.map(({ embedding }) => [...embedding]), [
      [0, 0.5, -0.25],
      [1, 0.5, -0.25],
    ]);
    assert.equal(answer.model, model);
  },
  ["k1/text-embedding-v4", "k2/text-embedding-v4"],
);

inEverySlot("responses", async (client, model) => {
  const answer = await client.responses.create({ model: "any", input: "hello" });
  assert.equal(answer.output_text, textOf(model));
});

inEverySlot("streamed responses", async (client, model) => {
  const stream = client.responses.stream({ model: "any", input: "hello" });
  let text = "";
  for await (const event of stream) {
    if (event.type === "response.output_text.delta") text += event.delta;
  }
  assert.equal(text, textOf(model));
  assert.equal((await stream.finalResponse()).status, "completed");
});

test("files stay with their key", async (t) => {
  const mine = await pool(t, { quota: 1 });
  const client = make(mine);
  const file = new File(['{"a":1}\n'], "in.jsonl");
  const { id, bytes } = await client.files.create({ file, purpose: "batch" });
  assert.equal(bytes, 8);
  for (let n = 0; n < 3; n++) await client.chat.completions.create({ model: "any", messages });
  assert.equal(await (await client.files.content(id)).text(), '{"a":1}\n');
  const calls = (await mine.calls()).filter((call) => call.path.includes("/files"));
  assert.deepEqual(calls.map((call) => call.key), ["k1", "k1"]);
});

test("models", async (t) => {
  const client = make(await pool(t));
  const { data } = await client.models.list();
  assert.deepEqual(data.map((model) => model.id), MODELS);
  assert.equal((await client.models.retrieve(MODELS[1])).object, "model");
  await assert.rejects(client.models.retrieve("no-such-model"), OpenAI.NotFoundError);
});

test("wrong key", async (t) => {
  const mine = await pool(t);
  const client = make(mine, { apiKey: "wrong" });
  for (const ask of [
    () => client.chat.completions.create({ model: "any", messages }),
    () => client.responses.create({ model: "any", input: "hello" }),
    () => client.models.list(),
  ]) {
    await assert.rejects(async () => await ask(), OpenAI.AuthenticationError);
  }
  assert.deepEqual(await mine.calls(), []);
});
