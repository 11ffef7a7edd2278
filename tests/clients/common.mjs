// What the Node suites share: pools from the lab (`LAB`, its address), and what must hold.

import assert from "node:assert/strict";
import { setTimeout } from "node:timers/promises";

export const MODELS = ["qwen-max", "qwen-plus"];
export const ALL_SLOTS = ["k1", "k2"].flatMap((key) => MODELS.map((model) => `${key}/${model}`));
export const TOOL = {
  name: "get_weather",
  description: "The weather in a city.",
  parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
};

export const textOf = (model) => `Served by ${model}.`;

async function lab(method, path, body) {
  const answer = await fetch(process.env.LAB + path, { method, body: body && JSON.stringify(body) });
  assert.equal(answer.status, 200, `${method} ${path}`);
  return answer.json();
}

export const release = (gate) => lab("POST", `/gates/${gate}`, {});

/** A proxy of its own, which ends with the test: 2 keys x 2 models, `quota` in each slot. */
export async function pool(test, spec = {}) {
  const { id, address, key } = await lab("POST", "/pools", spec);
  test.after(async () => {
    const { code } = await lab("DELETE", `/pools/${id}`);
    assert.equal(code, 0, "exit code of the proxy");
  });
  const calls = () => lab("GET", `/pools/${id}/calls`);
  return {
    origin: `http://${address}`,
    key,
    calls,
    async slots(status = 200) {
      return (await calls())
        .filter((call) => call.status === status)
        .map((call) => `${call.key}/${call.model}`);
    },
    /** How often clients were answered so, by the proxy's log, which follows the answer. */
    async refusals(status) {
      const line = new RegExp(` (?:request|refused) .*\\bstatus=${status}\\b`, "g");
      for (const deadline = Date.now() + 5000; Date.now() < deadline; ) {
        await setTimeout(100);
        const found = (await lab("GET", `/pools/${id}/log`)).match(line);
        if (found) return found.length;
      }
      return 0;
    },
  };
}

/**
 * `ask(client, model)` works once in every slot, in their order, each reached through the
 * exhaustion of the one before; the last `ask` of a fifth request gets one 503 of class `error`.
 */
export async function rotates(test, make, ask, error, slots = ALL_SLOTS) {
  const mine = await pool(test, { quota: 1 });
  const client = make(mine);
  for (const slot of slots) await ask(client, slot.split("/")[1]);
  assert.deepEqual(await mine.slots(), slots);
  assert.deepEqual(await mine.slots(403), slots.slice(0, -1));
  await assert.rejects(ask(client, "none"), (thrown) => {
    assert.ok(thrown instanceof error, String(thrown));
    assert.equal(thrown.status, 503);
    return true;
  });
  assert.equal(await mine.refusals(503), 1, "requests of the client that got 503");
}
