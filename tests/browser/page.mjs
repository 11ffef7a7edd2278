// The status page as people use it: a real proxy before a tiny upstream, in a real Chromium.
// Started by ./run, which says where playwright-core and the binary are.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import http from 'node:http';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const { chromium } = createRequire(process.env.MODULES)('playwright-core');
const [binary, ...wanted] = process.argv.slice(2);
const pictures = process.env.SCREENSHOTS;

const KEY = 'browser-test-proxy-key';
const LIMIT = 10_000;
const MARKUP = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</scr' + 'ipt>&lt;b&gt;';

// --- Upstream and proxy ----------------------------------------------------------------------

/** Answers chat requests as `script` says for "key model"; an answer is good unless told. */
class Upstream {
  script = new Map();
  held = [];

  static async start() {
    const upstream = new Upstream();
    upstream.server = http.createServer(async (request, response) => {
      let body = '';
      for await (const part of request) body += part;
      const key = request.headers.authorization.replace('Bearer ', '');
      upstream.answer(`${key} ${JSON.parse(body).model}`, response);
    });
    upstream.server.listen(0, '127.0.0.1');
    await once(upstream.server, 'listening');
    upstream.origin = `http://127.0.0.1:${upstream.server.address().port}`;
    return upstream;
  }

  answer(slot, response) {
    const reply = this.script.get(slot) ?? good(1200, 300);
    if (reply === 'hold') return this.held.push(response);
    response.writeHead(reply.status, { 'content-type': 'application/json', ...reply.headers });
    response.end(JSON.stringify(reply.body));
  }

  release() {
    for (const response of this.held.splice(0)) {
      const { status, body } = good(1, 1);
      response.writeHead(status, { 'content-type': 'application/json' });
      response.end(JSON.stringify(body));
    }
  }

  stop() {
    this.server.closeAllConnections();
    this.server.close();
  }
}

const good = (input, output) => ({
  status: 200,
  body: {
    id: 'x', object: 'chat.completion', choices: [],
    ...(input !== null && { usage: { prompt_tokens: input, completion_tokens: output, total_tokens: input + output } }),
  },
});
const exhausted = (message = 'The free tier of the model has been exhausted.') => ({
  status: 403, body: { error: { code: 'AllocationQuota.FreeTierOnly', type: 'AllocationQuota.FreeTierOnly', message } },
});
const throttled = { status: 429, headers: { 'retry-after': '120' }, body: { error: { code: 'Throttling.RateQuota', message: 'slower' } } };

class Proxy {
  static async start(upstream, settings = {}, state = null) {
    const proxy = new Proxy();
    proxy.folder = mkdtempSync(join(tmpdir(), 'proxy-'));
    proxy.env = {
      PROXY_API_KEY: KEY, DASHSCOPE_API_KEYS: 'sk-a,sk-b', MODEL_IDS: 'qwen-max,qwen-plus,qwen-turbo', PORT: '0',
      UPSTREAM_BASE_URL: `${upstream.origin}/apps/anthropic`,
      OPENAI_UPSTREAM_BASE_URL: `${upstream.origin}/compatible-mode/v1`,
      STATE_PATH: join(proxy.folder, 'state', 'proxy-state.json'), SHUTDOWN_GRACE_SECONDS: '20', ...settings,
    };
    if (state) {
      mkdirSync(join(proxy.folder, 'state'));
      writeFileSync(proxy.env.STATE_PATH, JSON.stringify(state));
    }
    await proxy.begin();
    return proxy;
  }

  async begin() {
    this.log = '';
    this.child = spawn(binary, [], { cwd: this.folder, env: this.env, stdio: ['ignore', 'ignore', 'pipe'] });
    this.exited = once(this.child, 'exit');
    this.child.stderr.on('data', text => { this.log += text; });
    await until('the proxy listens', () => / listening address=\S+\s/.test(this.log), () => this.log);
    const address = this.log.match(/ listening address=(\S+)/)[1];
    this.env.PORT = address.split(':').at(-1);
    this.origin = `http://${address}`;
  }

  async stop() {
    if (this.child.exitCode === null && this.child.signalCode === null) this.child.kill('SIGTERM');
    await this.exited;
  }

  async end() {
    if (this.child.exitCode === null && this.child.signalCode === null) this.child.kill('SIGKILL');
    await this.exited;
    rmSync(this.folder, { recursive: true, force: true });
  }

  async chat() {
    const response = await fetch(`${this.origin}/v1/chat/completions`, {
      method: 'POST', headers: { authorization: `Bearer ${KEY}` }, body: '{"model":"any","messages":[]}',
    });
    await response.text();
    return response.status;
  }

  async post(path, body) {
    const headers = { authorization: `Bearer ${KEY}` };
    const response = await fetch(this.origin + path, { method: 'POST', headers, body: JSON.stringify(body) });
    assert.equal(response.status, 200);
  }

  async status() {
    return (await fetch(`${this.origin}/models/status`, { headers: { authorization: `Bearer ${KEY}` } })).json();
  }

  async states() {
    return Object.fromEntries((await this.status()).models.map(slot => [`${slot.keyIndex} ${slot.id}`, slot.state]));
  }
}

const until = async (what, is, report = () => '') => {
  const end = Date.now() + LIMIT;
  let failure;
  while (Date.now() < end) {
    try { if (await is()) return; } catch (error) { failure = error; }
    await new Promise(resolve => setTimeout(resolve, 50));
  }
  throw new Error(`not within ${LIMIT / 1000} s: ${what} ${failure ?? ''} ${report()}`);
};

// --- Browser ---------------------------------------------------------------------------------

/** Whatever no page may ever cause. Refused requests and 401 answers are part of the tests. */
const violations = [];
const EXPECTED = /Failed to load resource: (net::|the server responded with a status of 401)/;

const watch = (page, name) => {
  page.on('pageerror', error => violations.push(`${name}: ${error}`));
  page.on('console', message => {
    if (['error', 'warning'].includes(message.type()) && !EXPECTED.test(message.text())) violations.push(`${name}: ${message.text()}`);
  });
  page.on('dialog', dialog => { violations.push(`${name}: ${dialog.message()}`); dialog.dismiss(); });
};

let browser, current;
const tab = async (proxy, { locale = 'en-US', colorScheme = 'light', viewport = { width: 1280, height: 800 }, signedIn = true, context } = {}) => {
  context ??= await browser.newContext({ locale, colorScheme, viewport, reducedMotion: 'reduce' });
  context.setDefaultTimeout(LIMIT);
  const page = await context.newPage();
  watch(page, current);
  await page.goto(proxy.origin);
  if (signedIn) await signIn(page);
  return page;
};

const signIn = async (page, key = KEY) => {
  await page.locator('#key').fill(key);
  await page.locator('#key').press('Enter');
  if (key === KEY) await page.locator('.slot').first().waitFor();
};

const slotAt = (page, key, model) => page.locator('tbody tr', { has: page.locator('th b', { hasText: new RegExp(`^${model}$`) }) }).locator('.slot').nth(key);
const state = locator => locator.getAttribute('data-state');
const action = (page, name) => page.locator(`[data-action=${name}]`);
const isState = (locator, name) => until(`${name}`, async () => await state(locator) === name);
const text = locator => locator.textContent();
const picture = async (page, name) => { if (pictures) await page.screenshot({ path: join(pictures, `${name}.png`) }); };
/** Two rounds of refreshing. */
const refreshes = async page => {
  for (let round = 0; round < 2; round++) await page.waitForResponse(response => response.url().endsWith('/models/status'));
  await page.evaluate(() => new Promise(resolve => requestAnimationFrame(() => setTimeout(resolve))));
};
const overflow = page => page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
/** Where the focus is: id and name. */
const focused = page => page.evaluate(() => {
  const node = document.activeElement;
  return node === document.body ? 'nothing' : [node.id, node.getAttribute('aria-label') || node.textContent].join('|');
});

/** The lowest contrast of visible text that stands on a plain ground. */
const lowestContrast = page => page.evaluate(() => {
  const parse = color => { const [r, g, b, a = 1] = color.match(/[\d.]+/g).map(Number); return [r, g, b, a]; };
  const light = ([r, g, b]) => [r, g, b].map(c => c / 255).map(c => c <= .03928 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4).reduce((sum, c, i) => sum + c * [.2126, .7152, .0722][i], 0);
  let worst = [99, ''];
  for (const node of document.querySelectorAll('body *')) {
    const own = [...node.childNodes].some(child => child.nodeType === 3 && child.textContent.trim());
    if (!own || !node.checkVisibility() || node.closest('.unseen, script, [aria-disabled=true]')) continue;
    let ground = node;
    while (ground && parse(getComputedStyle(ground).backgroundColor)[3] < 1) ground = ground.parentElement;
    if (!ground) continue;
    const [a, b] = [light(parse(getComputedStyle(node).color)), light(parse(getComputedStyle(ground).backgroundColor))].sort((a, b) => b - a);
    const contrast = (a + .05) / (b + .05);
    if (contrast < worst[0]) worst = [contrast, node.className || node.id || node.tagName];
  }
  return worst;
});

// --- Tests -----------------------------------------------------------------------------------

const tests = [];
const test = (name, run) => tests.push({ name, run });

/** A pool in every state: key 1 has two cooling models, rests on the third; key 2 serves. */
const mixed = async ({ upstream, start }, settings) => {
  const proxy = await start({ MODEL_COOLDOWN_SECONDS: '3600', ...settings });
  for (let n = 0; n < 3; n++) assert.equal(await proxy.chat(), 200);
  upstream.script.set('sk-a qwen-max', good(null));
  assert.equal(await proxy.chat(), 200);
  upstream.script.set('sk-a qwen-max', exhausted());
  upstream.script.set('sk-a qwen-plus', throttled);
  assert.equal(await proxy.chat(), 200);
  await proxy.post('/models/disable', { key: 1, model: 'qwen-turbo' });
  return proxy;
};

test('only a browser gets the page, with a strict policy; others get the index', async ({ start }) => {
  const { origin } = await start();
  const plain = await fetch(origin);
  assert.equal(plain.headers.get('content-type'), 'application/json');
  assert.equal(plain.headers.get('vary'), 'accept');
  assert.ok((await plain.json()).endpoints.includes('GET /models/status'));
  const headers = { accept: 'text/html,application/xhtml+xml,*/*;q=0.8' };
  const page = await fetch(origin, { headers });
  const body = await page.text();
  assert.match(page.headers.get('content-type'), /^text\/html/);
  assert.match(page.headers.get('content-security-policy'), /^default-src 'none'; script-src 'sha256-[^']+'; style-src 'sha256-[^']+'; connect-src 'self';/);
  for (const rule of ["base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"]) assert.ok(page.headers.get('content-security-policy').includes(rule));
  assert.equal(page.headers.get('x-content-type-options'), 'nosniff');
  assert.equal(page.headers.get('referrer-policy'), 'no-referrer');
  assert.equal(page.headers.get('access-control-allow-origin'), null);
  assert.ok(!body.includes(KEY));
  const head = await fetch(origin, { method: 'HEAD', headers });
  assert.equal(head.headers.get('content-length'), String(Buffer.byteLength(body)));
});

test('a wrong key is refused in words, the right one stays for this tab alone', async ({ start }) => {
  const proxy = await start();
  const page = await tab(proxy, { signedIn: false });
  await picture(page, 'signin');
  for (const wrong of ['wrong-key', '密钥', 'sk-a']) {
    await signIn(page, wrong);
    await until('a message', async () => (await text(page.locator('#wrong'))).includes('not the proxy key'));
    assert.equal(await page.locator('#key').getAttribute('aria-invalid'), 'true');
    assert.equal((await focused(page)).split('|')[0], 'key');
    assert.ok(!await page.locator('#app').isVisible());
  }
  await page.locator('#key').fill('');
  await page.locator('#enter').click();
  assert.match(await text(page.locator('#wrong')), /Enter a key/);
  await page.locator('#reveal').click();
  assert.equal(await page.locator('#key').getAttribute('type'), 'text');
  await page.locator('#reveal').click();
  await signIn(page, `  ${KEY}\t`);
  await page.locator('.slot').first().waitFor();
  assert.ok(!await page.locator('#signin').isVisible());
  await page.reload();
  await page.locator('.slot').first().waitFor();
  assert.equal(await page.evaluate(() => localStorage.length), 0);
  const other = await tab(proxy, { signedIn: false, context: page.context() });
  assert.ok(await other.locator('#signin').isVisible());
  await page.locator('#lock').click();
  assert.ok(await page.locator('#signin').isVisible());
  assert.equal(await page.locator('.slot').count(), 0);
  assert.equal(await page.evaluate(() => sessionStorage.length), 0);
});

test('a key that is accepted no longer leads back to the door', async ({ start }) => {
  const proxy = await start();
  const page = await tab(proxy);
  await proxy.stop();
  proxy.env.PROXY_API_KEY = 'another-key-of-the-proxy';
  await proxy.begin();
  await page.locator('#signin').waitFor();
  assert.match(await text(page.locator('#wrong')), /no longer accepts/);
});

test('the grid tells state, use, place and totals', async tools => {
  const proxy = await mixed(tools);
  const page = await tab(proxy);
  const cell = (key, model) => slotAt(page, key, model);
  assert.equal(await page.locator('thead th[scope=col]').count(), 3);
  assert.equal(await page.locator('tbody th[scope=row]').count(), 3);
  for (const [key, model, name, word] of [
    [0, 'qwen-max', 'cooling', 'Cooling'], [0, 'qwen-plus', 'benched', 'Resting'], [0, 'qwen-turbo', 'available', 'Available'], [1, 'qwen-turbo', 'disabled', 'Off'],
  ]) {
    assert.equal(await state(cell(key, model)), name);
    assert.equal(await cell(key, model).locator('use').getAttribute('href'), `#icon-${name}`);
    assert.ok((await text(cell(key, model))).includes(word), word);
  }
  assert.equal(await text(cell(0, 'qwen-max').locator('.used')), '≥ 4.5K');
  assert.equal(await text(cell(0, 'qwen-turbo').locator('.used')), '1.5K');
  assert.equal(await cell(0, 'qwen-max').locator('.meter').getAttribute('class'), 'meter unsure');
  assert.equal(await page.locator('.badge:visible').count(), 1);
  const current = (await proxy.status()).models.find(slot => slot.currentKey && slot.currentModel);
  assert.equal(await text(page.locator('#t-current')), current.id);
  assert.ok(await cell(current.keyIndex, current.id).locator('.badge').isVisible());
  assert.equal(await text(page.locator('#t-available')), '4');
  assert.match(await text(page.locator('#t-tokens')), /^≥ /);
  assert.equal(await text(page.locator('#t-requests')), String((await proxy.status()).models.reduce((sum, slot) => sum + slot.requests, 0)));
  const facts = await text(page.locator('#process'));
  for (const fact of [/Version\d+\.\d+\.\d+/, /Running for\d+ s/, /Workers busy0 \/ 64/, /proxy-state\.json \(writable\)/]) assert.match(facts, fact);
  await cell(0, 'qwen-max').click();
  const panel = await text(page.locator('#panel'));
  for (const fact of ['qwen-max · Key 1', 'Free quota used up', '≥ 4,500', '3,600 / 900', 'did not say', 'has been exhausted']) assert.ok(panel.includes(fact), `${fact}: ${panel}`);
  await picture(page, 'desktop-en-light');
});

test('without a known quota there are no bars', async ({ start }) => {
  const proxy = await start({ FREE_QUOTA_TOKENS: '0' });
  await proxy.chat();
  const page = await tab(proxy);
  assert.equal(await page.locator('.meter:visible').count(), 0);
  assert.equal(await text(page.locator('#t-tokens')), '1.5K');
  assert.equal(await text(slotAt(page, 0, 'qwen-max').locator('.used')), '1.5K');
});

test('a countdown ticks every second and ends by itself', async ({ upstream, start }) => {
  upstream.script.set('sk-a qwen-max', exhausted());
  const proxy = await start({ MODEL_COOLDOWN_SECONDS: '8' });
  await proxy.chat();
  const page = await tab(proxy);
  const cell = slotAt(page, 0, 'qwen-max');
  const seen = new Set();
  await until('three different times', async () => seen.add(await text(cell.locator('.left'))).size >= 3);
  assert.match([...seen][0], /^0:0\d$/);
  const seconds = [...seen].map(time => Number(time.split(':')[1]));
  assert.deepEqual(seconds, [...seconds].sort((a, b) => b - a));
  await isState(cell, 'available');
  await until('the change is told', async () => (await text(page.locator('#live'))).includes('qwen-max · Key 1: Available'));
});

test('text of an upstream stays text', async ({ upstream, start }) => {
  upstream.script.set('sk-a qwen-max', exhausted(MARKUP));
  const proxy = await start();
  await proxy.chat();
  const page = await tab(proxy);
  await slotAt(page, 0, 'qwen-max').click();
  assert.equal(await text(page.locator('#panel-errors q')), MARKUP);
  assert.equal(await page.evaluate(() => window.hacked), undefined);
  assert.equal(await page.locator('#panel img, #panel script').count(), 0);
  await page.locator('thead .head').first().click();
  await page.locator('#panel-errors summary').click();
  assert.equal(await text(page.locator('#panel-errors q')), MARKUP);
});

test('the policy holds: no markup from text, no inline handler, no other host', async ({ start }) => {
  const page = await tab(await start());
  const before = violations.length;
  const outcome = await page.evaluate(async () => {
    const seen = [];
    document.addEventListener('securitypolicyviolation', event => seen.push(event.effectiveDirective));
    let markup = 'taken';
    try { document.createElement('p').innerHTML = '<b>x</b>'; } catch { markup = 'refused'; }
    const button = document.createElement('button');
    try { button.setAttribute('onclick', 'window.hacked = 1'); button.click(); } catch { /* trusted types */ }
    const elsewhere = await fetch('http://127.0.0.1:9/').then(() => 'reached', () => 'refused');
    await new Promise(resolve => setTimeout(resolve, 100));
    return { markup, elsewhere, hacked: window.hacked, seen };
  });
  violations.splice(before);
  assert.deepEqual([outcome.markup, outcome.elsewhere, outcome.hacked], ['refused', 'refused', undefined]);
  assert.ok(outcome.seen.includes('connect-src') && outcome.seen.includes('require-trusted-types-for'), String(outcome.seen));
});

test('a reset is asked for, can be cancelled, and ends the cooldown', async tools => {
  const proxy = await mixed(tools);
  const page = await tab(proxy);
  const cell = slotAt(page, 0, 'qwen-max');
  await cell.click();
  for (const cancel of [() => page.locator('#confirm-no').click(), () => page.keyboard.press('Escape')]) {
    await action(page, 'reset').click();
    assert.ok(await page.locator('#confirm').isVisible());
    assert.equal(await text(page.locator('#confirm-title')), 'Reset qwen-max · Key 1?');
    assert.match(await text(page.locator('#confirm-warn')), /billed/);
    assert.match(await focused(page), /^confirm-no/);
    await picture(page, 'confirm');
    await cancel();
    assert.ok(!await page.locator('#confirm').isVisible());
    assert.ok(await page.locator('#panel').isVisible());
    assert.match(await focused(page), /\|Reset/);
  }
  await refreshes(page);
  assert.equal(await state(cell), 'cooling');
  await action(page, 'reset').click();
  await page.locator('#confirm-yes').click();
  await isState(cell, 'available');
  assert.match(await text(page.locator('#toasts')), /1 cooldown ended/);
  assert.equal((await proxy.states())['0 qwen-max'], 'available');
  assert.equal((await proxy.states())['0 qwen-plus'], 'benched');
  assert.equal(await action(page, 'reset').getAttribute('aria-disabled'), 'true');
  await action(page, 'reset').click({ force: true });
  assert.ok(!await page.locator('#confirm').isVisible(), 'there is nothing to reset');
});

test('a guarded slot says so, and a reset says what it does to the guard', async ({ start }) => {
  const proxy = await start({ FREE_QUOTA_TOKENS: '2000', QUOTA_GUARD: '90' });
  for (let n = 0; n < 3; n++) assert.equal(await proxy.chat(), 200);
  const page = await tab(proxy);
  const cell = slotAt(page, 0, 'qwen-max');
  await isState(cell, 'guarded');
  assert.ok((await text(cell)).includes('Guarded'));
  await cell.click();
  assert.match(await text(page.locator('#panel')), /Left by QUOTA_GUARD[\s\S]*on: slot left \(90 %\)/);
  await action(page, 'reset').click();
  assert.match(await text(page.locator('#confirm-guard')), /LIFTS THE GUARD/);
  await picture(page, 'confirm-guard');
  await page.locator('#confirm-usage').check();
  assert.ok(!await page.locator('#confirm-guard').isVisible());
  await page.locator('#confirm-usage').uncheck();
  await page.locator('#confirm-yes').click();
  await isState(cell, 'available');
  assert.match(await text(page.locator('#toasts')), /The guard is lifted from 1 slot\./);
  await until('the note', async () => /lifted from 1 slot by a reset/.test(await text(page.locator('#notes'))));
  await action(page, 'reset').click();
  await page.locator('#confirm-usage').check();
  await page.locator('#confirm-yes').click();
  await until('the guard is back', async () => (await proxy.status()).models[0].guard === 'on');
  assert.equal((await proxy.status()).models[0].inputTokens, 0);
});

test('what is not counted in tokens is said to be without a guard', async ({ upstream, start }) => {
  const body = { output: {}, usage: { image_count: 1 } };
  upstream.script.set('sk-a qwen-max', { status: 200, body });
  const proxy = await start({ QUOTA_GUARD: '90' });
  await proxy.chat();
  const page = await tab(proxy, { locale: 'zh-CN' });
  await slotAt(page, 0, 'qwen-max').click();
  assert.match(await text(page.locator('#panel-units')), /图片、秒数或字符/);
});

test('slots, keys, models and everything are switched off and on', async ({ start }) => {
  const proxy = await start();
  const page = await tab(proxy);
  const confirm = async (name, title) => {
    await action(page, name).click();
    assert.equal(await text(page.locator('#confirm-title')), title);
    const answer = page.waitForResponse(response => response.url().endsWith(`/models/${name}`));
    await page.locator('#confirm-yes').click();
    assert.equal((await answer).status(), 200);
  };
  const off = async () => Object.entries(await proxy.states()).filter(([, state]) => state === 'disabled').map(([slot]) => slot);
  await slotAt(page, 0, 'qwen-plus').click();
  await confirm('disable', 'Switch off qwen-plus · Key 1?');
  assert.deepEqual(await off(), ['0 qwen-plus']);
  await isState(slotAt(page, 0, 'qwen-plus'), 'disabled');
  await confirm('enable', 'Switch on qwen-plus · Key 1?');
  assert.deepEqual(await off(), []);
  await page.locator('thead .head').nth(2).click();
  await confirm('disable', 'Switch off Key 2?');
  assert.deepEqual(await off(), ['1 qwen-max', '1 qwen-plus', '1 qwen-turbo']);
  await page.locator('tbody .head').first().click();
  await until('the panel is of the model', async () => await text(page.locator('#panel-title')) === 'qwen-max');
  await confirm('disable', 'Switch off qwen-max on every key?');
  assert.deepEqual(await off(), ['0 qwen-max', '1 qwen-max', '1 qwen-plus', '1 qwen-turbo']);
  await page.locator('thead .head').first().click();
  await action(page, 'disable').click();
  assert.match(await text(page.locator('#confirm-warn')), /503/);
  await page.locator('#confirm-no').click();
  await confirm('disable', 'Switch off all slots?');
  assert.equal((await off()).length, 6);
  await until('it is said', async () => (await text(page.locator('#t-none'))).includes('No slot available'));
  await until('it can be switched on', async () => await action(page, 'enable').getAttribute('aria-disabled') === null);
  await confirm('enable', 'Switch on all slots?');
  assert.deepEqual(await off(), []);
});

test('refreshing replaces nothing: focus, open details and scroll stay', async tools => {
  const proxy = await mixed(tools);
  const page = await tab(proxy);
  await page.locator('thead .head').first().click();
  await page.locator('#panel-errors summary').click();
  await page.evaluate(() => document.querySelectorAll('#app *').forEach(node => { node.marked = true; }));
  await page.locator('#panel-errors summary').focus();
  await proxy.chat();
  await proxy.post('/models/disable', { model: 'qwen-plus' });
  await refreshes(page);
  assert.equal(await state(slotAt(page, 0, 'qwen-plus')), 'disabled');
  assert.ok(await page.locator('#panel-errors').evaluate(node => node.open && node.contains(document.activeElement)));
  assert.equal(await page.evaluate(() => [...document.querySelectorAll('.tiles *, table *, .process *, .chips *')].filter(node => !node.marked).length), 0);
  await page.locator('#panel-errors summary').click();
  await refreshes(page);
  assert.ok(!await page.locator('#panel-errors').evaluate(node => node.open));
});

test('it speaks the language of the browser, and the other on demand, for good', async tools => {
  const proxy = await mixed(tools);
  const page = await tab(proxy, { locale: 'zh-CN' });
  assert.equal(await page.evaluate(() => document.documentElement.lang), 'zh-CN');
  assert.ok((await text(slotAt(page, 0, 'qwen-max'))).startsWith('Key 1冷却'));
  await slotAt(page, 0, 'qwen-max').click();
  assert.ok((await text(page.locator('#panel'))).includes('免费额度已用完'));
  await picture(page, 'desktop-zh-light');
  await page.locator('[data-language=en]').click();
  assert.equal(await page.evaluate(() => document.documentElement.lang), 'en');
  assert.equal(await page.locator('[data-language=en]').getAttribute('aria-pressed'), 'true');
  const english = await page.evaluate(() => document.body.innerText.replace('中文', ''));
  assert.doesNotMatch(english, /\p{Script=Han}/u);
  await page.reload();
  await page.locator('.slot').first().waitFor();
  assert.equal(await page.evaluate(() => document.documentElement.lang), 'en');
  const german = await tab(proxy, { locale: 'de-DE', signedIn: false });
  assert.equal(await text(german.locator('h1').first()), 'Enter the proxy key');
});

test('a phone shows everything without scrolling sideways', async tools => {
  const proxy = await mixed(tools, { MODEL_IDS: 'qwen-max,qwen-plus,qwen-turbo,qwen3-235b-a22b-instruct-2507-with-a-very-long-name/snapshot_2026-11-29' });
  for (const locale of ['zh-CN', 'en-US']) {
    const page = await tab(proxy, { locale, viewport: { width: 360, height: 740 }, signedIn: false });
    assert.ok(await overflow(page) <= 0, 'sign-in');
    await signIn(page);
    assert.ok(await overflow(page) <= 0, 'grid');
    await picture(page, `phone-${locale}`);
    const cell = slotAt(page, 0, 'qwen-max');
    assert.ok((await cell.boundingBox()).height >= 40);
    assert.ok(await cell.locator('.who').isVisible());
    await cell.click();
    assert.ok(await page.locator('#panel').isVisible());
    assert.ok(await overflow(page) <= 0, 'panel');
    await picture(page, `phone-panel-${locale}`);
    await action(page, 'reset').click();
    const box = await page.locator('#confirm').boundingBox();
    assert.ok(box.x >= 0 && box.x + box.width <= 360 && await overflow(page) <= 0, 'dialog');
    await page.locator('#confirm-no').click();
    await page.locator('#panel-close').click();
    assert.ok(!await page.locator('#panel').isVisible());
    assert.equal(await page.getByRole('row').count(), 5, 'it is still a table to a screen reader');
    assert.equal(await page.getByRole('cell').count(), 8);
    await page.context().close();
  }
});

test('light and dark follow the system, and text can be read in both', async tools => {
  const proxy = await mixed(tools);
  const grounds = [];
  for (const colorScheme of ['light', 'dark']) {
    const page = await tab(proxy, { colorScheme, signedIn: false });
    const [door, node] = await lowestContrast(page);
    assert.ok(door >= 4.5, `${colorScheme} ${node}: ${door}`);
    await signIn(page);
    await slotAt(page, 0, 'qwen-plus').click();
    const [contrast, name] = await lowestContrast(page);
    assert.ok(contrast >= 4.5, `${colorScheme} ${name}: ${contrast}`);
    grounds.push(await page.evaluate(() => getComputedStyle(document.body).backgroundColor));
    await picture(page, `desktop-en-${colorScheme}-panel`);
  }
  assert.notEqual(grounds[0], grounds[1]);
});

test('it can be used by keyboard alone', async tools => {
  const proxy = await mixed(tools);
  const page = await tab(proxy, { signedIn: false });
  await page.keyboard.type(KEY);
  await page.keyboard.press('Enter');
  await page.locator('.slot').first().waitFor();
  const seen = [await focused(page)];
  assert.equal(seen[0], 'heading|Pool status');
  for (let n = 0; n < 20 && !(await focused(page)).includes('All slots'); n++) {
    await page.keyboard.press('Tab');
    seen.push(await focused(page));
  }
  assert.ok(seen.at(-1).includes('All slots'), seen.join('\n'));
  for (const key of ['ArrowDown', 'ArrowRight', 'ArrowDown']) await page.keyboard.press(key);
  assert.match(await focused(page), /qwen-plus · Key 1, Resting/);
  assert.notEqual(await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle), 'none');
  await page.keyboard.press('End');
  assert.match(await focused(page), /qwen-plus · Key 2/);
  await page.keyboard.press('Control+Home');
  assert.match(await focused(page), /All slots/);
  for (const key of ['ArrowRight', 'ArrowDown', 'Enter']) await page.keyboard.press(key);
  assert.match(await focused(page), /^panel-title\|qwen-max · Key 1/);
  await refreshes(page);
  assert.match(await focused(page), /^panel-title/);
  await page.keyboard.press('Escape');
  assert.ok(!await page.locator('#panel').isVisible());
  assert.match(await focused(page), /qwen-max · Key 1, Cooling/);
  assert.equal(await page.locator('table [tabindex="0"]').count(), 1, 'the grid is one stop of Tab');
});

test('models are found by name, slots by state', async tools => {
  const proxy = await mixed(tools);
  const page = await tab(proxy);
  const rows = () => page.locator('tbody tr:visible').count();
  await page.locator('#find').fill('PLUS');
  assert.equal(await rows(), 1);
  await page.locator('#find').fill('nothing');
  assert.equal(await rows(), 0);
  assert.ok(await page.locator('#empty').isVisible());
  await page.locator('#find').fill('');
  await page.locator('.chip[data-state=cooling]').click();
  assert.equal(await rows(), 1);
  assert.match(await text(page.locator('.chip[data-state=cooling]')), /Cooling1/);
  await refreshes(page);
  assert.equal(await rows(), 1);
  await page.locator('.chip').first().click();
  assert.equal(await rows(), 3);
});

test('what a model cannot take is told for each of its slots, and a reset forgets it', async ({ upstream, start }) => {
  const message = 'Range of input length should be [1, 30720]';
  upstream.script.set('sk-a qwen-max', { status: 400, body: { error: { code: 'invalid_parameter_error', message } } });
  const proxy = await start();
  assert.equal(await proxy.chat(), 200);
  const page = await tab(proxy);
  await slotAt(page, 1, 'qwen-max').click();
  const facts = page.locator('#panel-facts');
  assert.match(await text(facts), /Cannot takelonger input \(> 30,720\) \(bytes:\d+\), on \/chat\/completions, believed until /);
  await picture(page, 'limit');
  await action(page, 'reset').click();
  await page.locator('#confirm-yes').click();
  await until('the limit is forgotten', async () => !/Cannot take/.test(await text(facts)));
  assert.deepEqual((await proxy.status()).models[0].limits, []);
});

test('two keys of one account are told', async ({ upstream, start }) => {
  const proxy = await start({ MODEL_IDS: 'qwen-max,qwen-plus' });
  for (const slot of ['sk-a qwen-max', 'sk-a qwen-plus', 'sk-b qwen-max', 'sk-b qwen-plus']) upstream.script.set(slot, exhausted());
  assert.equal(await proxy.chat(), 503);
  assert.equal((await proxy.status()).sameAccount.length, 1);
  const page = await tab(proxy);
  assert.match(await text(page.locator('#notes')), /Key 1 \([0-9a-f]{12}\) and Key 2 \([0-9a-f]{12}\) look like one account/);
  assert.match(await text(page.locator('thead .head').nth(1)), /shared account/);
  assert.equal(await text(page.locator('#t-none')), 'No slot available');
  assert.match(await text(page.locator('#t-current-key')), /first one back in (30d 0h|29d 23h)/);
});

test('a proxy that goes and comes back is told and found again', async ({ start }) => {
  const proxy = await start();
  const page = await tab(proxy);
  await page.evaluate(() => { document.querySelector('.slot').marked = true; });
  await proxy.stop();
  await until('it is told', async () => /has not answered for \d+ s/.test(await text(page.locator('#notes'))));
  assert.equal(await text(page.locator('#link')), 'No answer');
  assert.ok(await page.locator('.slot').first().isVisible(), 'the last known state stays');
  await picture(page, 'away');
  await slotAt(page, 0, 'qwen-max').click();
  await action(page, 'disable').click();
  await page.locator('#confirm-yes').click();
  await until('the failure is told', async () => /did not work.*does not answer/.test(await text(page.locator('#toasts'))));
  await proxy.begin();
  await until('it is back', async () => await text(page.locator('#link')) === 'Live');
  assert.equal(await text(page.locator('#notes')), '');
  assert.match(await text(page.locator('#live')), /The proxy is back/);
  assert.ok(await page.evaluate(() => document.querySelector('.slot').marked));
});

test('a proxy that drains says so while it still answers', async ({ upstream, start }) => {
  for (const model of ['qwen-max', 'qwen-plus', 'qwen-turbo']) upstream.script.set(`sk-a ${model}`, 'hold');
  const proxy = await start();
  const page = await tab(proxy);
  const chat = proxy.chat();
  await until('a request is in flight', () => upstream.held.length > 0);
  proxy.child.kill('SIGTERM');
  await until('it is told', async () => /is stopping|has stopped/.test(await text(page.locator('#notes'))));
  upstream.release();
  assert.equal(await chat, 200);
  await proxy.exited;
  await until('it is gone', async () => /has stopped, or is restarting/.test(await text(page.locator('#notes'))));
});

test('a state file that cannot be written is told', async ({ start }) => {
  const proxy = await start();
  const page = await tab(proxy);
  const folder = join(proxy.folder, 'state');
  rmSync(folder, { recursive: true });
  writeFileSync(folder, 'in the way');
  await slotAt(page, 0, 'qwen-max').click();
  await action(page, 'disable').click();
  await page.locator('#confirm-yes').click();
  await until('by the action', async () => (await text(page.locator('#toasts'))).includes('could not be written'));
  await until('by a note', async () => (await text(page.locator('#notes'))).includes('cannot be written'));
});

test('a hidden page asks nothing, and asks at once when it is seen again', async ({ start }) => {
  const page = await tab(await start());
  let asked = 0;
  page.on('request', request => { asked += request.url().endsWith('/models/status'); });
  const show = visible => page.evaluate(visible => {
    Object.defineProperty(document, 'hidden', { configurable: true, get: () => !visible });
    document.dispatchEvent(new Event('visibilitychange'));
  }, visible);
  await page.waitForResponse(response => response.url().endsWith('/models/status'));
  await show(false);
  const before = asked;
  await new Promise(resolve => setTimeout(resolve, 4500));
  assert.equal(asked, before);
  await show(true);
  await until('it asks', () => asked === before + 1);
});

test('ten keys times sixty models stay smooth', async ({ start }) => {
  const models = Array.from({ length: 60 }, (_, n) => `qwen3-${['max', 'plus', 'coder-plus', 'vl-flash'][n % 4]}-2026-${String(n % 12 + 1).padStart(2, '0')}-${n + 10}`);
  const keys = Array.from({ length: 10 }, (_, n) => `sk-${n}`);
  const state = { version: 1, modelState: {}, runtimeState: {} };
  keys.forEach((key, k) => models.forEach((modelId, m) => {
    if ((m * 7 + k * 3) % 5 > 1) return;
    const keyHash = createHash('sha256').update(key).digest('hex'), now = Date.now();
    state.modelState[`${keyHash}:${modelId}`] = {
      keyHash, modelId, cooldownUntil: now + (m + 1) * (k + 1) * 3_000_000, failureCount: 1,
      lastError: 'The free tier of the model has been exhausted.', lastUsedAt: now - 60_000, updatedAt: now - 1000,
    };
  }));
  const proxy = await start({ DASHSCOPE_API_KEYS: keys.join(), MODEL_IDS: models.join() }, state);
  for (let n = 0; n < 5; n++) await proxy.chat();
  await proxy.post('/models/disable', { key: 3, model: models[2] });
  assert.equal((await proxy.status()).models.filter(slot => slot.state === 'cooling').length, 240);
  const page = await tab(proxy, { viewport: { width: 1440, height: 900 } });
  await until('all slots', async () => await page.locator('.slot').count() === 600);
  assert.ok(await overflow(page) <= 0);
  const longest = await page.evaluate(() => new Promise(resolve => {
    let longest = 0;
    new PerformanceObserver(list => list.getEntries().forEach(entry => { longest = Math.max(longest, entry.duration); })).observe({ type: 'longtask' });
    setTimeout(() => resolve(longest), 6500);
  }));
  console.log(`     longest task in three refreshes: ${Math.round(longest)} ms`);
  assert.ok(longest < 400, `a task of ${longest} ms`);
  await page.locator('.scroll').evaluate(node => node.scrollTo(600, 900));
  const [corner, box] = [await page.locator('thead th').first().boundingBox(), await page.locator('.scroll').boundingBox()];
  assert.ok(Math.abs(corner.x - box.x) < 3 && Math.abs(corner.y - box.y) < 3, 'the corner stays');
  await refreshes(page);
  assert.deepEqual(await page.locator('.scroll').evaluate(node => [node.scrollLeft > 0, node.scrollTop]), [true, 900]);
  await picture(page, 'large');
});

// --- Running ---------------------------------------------------------------------------------

if (pictures) mkdirSync(pictures, { recursive: true });
browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
  args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync', '--no-proxy-server'],
});
let passed = 0, failed = 0;
for (const { name, run } of tests) {
  if (wanted.length && !wanted.some(word => name.includes(word))) continue;
  const upstream = await Upstream.start(), proxies = [];
  const start = async (...how) => { const proxy = await Proxy.start(upstream, ...how); proxies.push(proxy); return proxy; };
  const begun = Date.now(), before = violations.length;
  current = name;
  try {
    await run({ upstream, start });
    const broken = violations.slice(before);
    assert.deepEqual(broken, [], 'the console is clean');
    passed++;
    console.log(`ok   ${name} (${((Date.now() - begun) / 1000).toFixed(1)} s)`);
  } catch (error) {
    failed++;
    console.log(`FAIL ${name}\n${error.stack}\n${violations.slice(before).join('\n')}`);
    for (const proxy of proxies) console.log(`--- log of the proxy\n${proxy.log.split('\n').slice(-25).join('\n')}`);
    for (const context of browser.contexts()) for (const page of context.pages()) {
      if (pictures) await page.screenshot({ path: join(pictures, `failed-${failed}.png`) }).catch(() => {});
    }
  }
  for (const context of browser.contexts()) await context.close();
  for (const proxy of proxies) await proxy.end();
  upstream.stop();
}
await browser.close();
console.log(`${passed} passed, ${failed} failed`);
process.exit(failed || !passed ? 1 : 0);
