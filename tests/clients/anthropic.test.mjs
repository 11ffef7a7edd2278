// The Anthropic SDK for JavaScript.

import assert from "node:assert/strict";
import { test } from "node:test";

import Anthropic from "@anthropic-ai/sdk";
import { MODELS, TOOL, pool, release, rotates, textOf } from "./common.mjs";

const asked = { model: "any", max_tokens: 64, messages: [{ role: "user", content: "hello" }] };
const { parameters, ...tool } = TOOL;
const tools = [{ ...tool, input_schema: parameters }];
const make = (mine, more) => new Anthropic({ baseURL: mine.origin, apiKey: mine.key, ...more });
const inEverySlot = (name, ask) =>
  test(name, (t) => rotates(t, make, ask, Anthropic.InternalServerError));

inEverySlot("messages", async (client, model) => {
  const { data, response } = await client.messages.create(asked).withResponse();
  assert.equal(data.content[0].text, textOf(model));
  assert.equal(response.headers.get("x-proxy-model"), model);
});

inEverySlot("streamed messages", async (client, model) => {
  const message = await client.messages.stream(asked).finalMessage();
  assert.equal(message.content[0].text, textOf(model));
  assert.equal(message.usage.output_tokens, 4);
});

test("a stream arrives event by event", async (t) => {
  const client = make(await pool(t));
  const messages = [{ role: "user", content: "standin:gate=node-anthropic" }];
  // The SDK keeps DashScope's leading ping to itself.
  await release("node-anthropic");
  let last;
  for await (const event of await client.messages.create({ ...asked, messages, stream: true })) {
    last = event;
    await release("node-anthropic");
  }
  assert.equal(last.type, "message_stop");
});

inEverySlot("tools", async (client) => {
  const message = await client.messages.create({ ...asked, tools });
  assert.deepEqual(message.content[0].input, { city: "Hangzhou" });
});

inEverySlot("streamed tools", async (client) => {
  const message = await client.messages.stream({ ...asked, tools }).finalMessage();
  assert.deepEqual(message.content[0].input, { city: "Hangzhou" });
});

test("count_tokens", async (t) => {
  const mine = await pool(t, { quota: 1 });
  const client = make(mine);
  const { model, messages } = asked;
  assert.ok((await client.messages.countTokens({ model, messages })).input_tokens > 0);
  assert.deepEqual((await mine.calls()).map((call) => call.status), [200]);
  assert.equal((await client.messages.create(asked)).model, MODELS[0]);
});

test("models", async (t) => {
  const client = make(await pool(t));
  const models = [];
  for await (const model of client.models.list()) models.push(model.id);
  assert.deepEqual(models, MODELS);
  assert.equal((await client.models.retrieve(MODELS[0])).display_name, MODELS[0]);
  await assert.rejects(client.models.retrieve("no-such-model"), Anthropic.NotFoundError);
});

test("wrong key", async (t) => {
  const mine = await pool(t);
  for (const client of [
    make(mine, { apiKey: "wrong" }),
    make(mine, { apiKey: null, authToken: "wrong" }),
  ]) {
    await assert.rejects(client.messages.create(asked), Anthropic.AuthenticationError);
    await assert.rejects(client.models.list(), Anthropic.AuthenticationError);
  }
  assert.deepEqual(await mine.calls(), []);
});
