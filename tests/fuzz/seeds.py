#!/usr/bin/env python3
"""Writes the first inputs of every target to corpus/<target>/, most of them from the answers in
tests/data/upstream-corpus.jsonl. It overwrites its own files and leaves found ones alone."""

import json
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROWS = [json.loads(line) for line in open(HERE / "../data/upstream-corpus.jsonl", encoding="utf-8")]

# As in fuzz_targets/verdict.rs and route.rs.
STATUSES = [403, 400, 429, 200, 201, 204, 299, 300, 401, 404, 413, 500, 502, 503, 504, 65535]
METHODS = ["POST", "GET", "DELETE"]


def write(target, name, content):
    folder = HERE / "corpus" / target
    folder.mkdir(parents=True, exist_ok=True)
    content = content if isinstance(content, bytes) else content.encode()
    (folder / f"seed-{name}").write_bytes(content)


ARRAY = b'[null,"AllocationQuota.FreeTierOnly",null,null]'
write("verdict", "array", b"\0\0" + ARRAY)
write("verdict", "cut", b"\0\xe0 padding")
write("verdict", "event-of-an-array", b"\0\0data:" + ARRAY)

for row in ROWS:
    name, body = row["name"], row["body"].encode()
    write("verdict", name, bytes([STATUSES.index(row["status"]), 0]) + body)
    write("sse", name, body)
    write("usage", name, b"\x03\x07\x40\xff" + body)
    if body[:1] == b"{":
        write("request_body", name, body)
        write("state", name, '{"version":1,"modelState":{},"runtimeState":{},"x":%s}' % row["body"])

for number, body in enumerate([
    '{}', '{"model":"x"}', ' {\n"mod\\u0065l" : "x" , "stream" : true , "store":false}\n',
    '{"seed":9007199254740993,"t":1.0e0,"model":{"a":[1]},"input_file_id":"file-1"}',
    '{"previous_response_id":"resp_1","input":"oss://dir/cat.png","fileid":"fileid://file-1"}',
    '{"model":"a","\\u006dodel":"b"}', '{"a":"\\ud83d\\ude00 é","model":null}',
]):
    write("request_body", number, body)

LIMITS = [json.loads(line) for line in open(HERE / "../data/limits.jsonl", encoding="utf-8")]
for number, row in enumerate(LIMITS):
    write("limits", f"said-{number}", b"\0\x0d" + row["body"].encode())
for number, body in enumerate([
    '{"max_tokens":64000,"max_completion_tokens" : 6.4e4,"thinking_budget":31999}',
    '{"thinking":{"type":"enabled","budget_tokens":31999},"reasoning":{"max_tokens":9e9}}',
    '{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]}',
    '{"tools":[{"type":"function"}],"tool_choice":"required","logprobs":true}',
    '{"reasoning_effort":"medium","enable_thinking":false,"model":"x"}',
]):
    for choice in range(6):
        write("limits", f"{choice}-{number}", bytes([choice, 13]) + body.encode())

for number, stream in enumerate([
    "\ufeff:c\r\n\r\nid:1\r\ndata:{}\r\n\r\ndata:2\r\n\r\n", "event:ping\rdata:{}\r\rdata\r\r",
    "event: ping\nevent: x\ndata: a\ndata:\ndata:  b\n\n", ":\n\n\n\ndata:x",
]):
    write("sse", number, stream)

USAGE = '"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7}'
OTHER = '"usage":{"input_tokens":9,"cache_read_input_tokens":1,"output_tokens":0,"image_count":2}'
for number, text in enumerate([
    "{%s}" % USAGE, "{%s%s%s}" % (OTHER, "\0" * 9, USAGE), "{%s%s}" % (USAGE, "\0" * 8),
    "{%s%s}" % ("\0" * 2, USAGE + "\0" * 10 + OTHER + "\1" * 34), "{%s%s}" % ("\1" * 40, USAGE),
]):
    write("usage", number, b"\x03\x07\x40\xff" + text.encode())

SLOT = ('{"keyHash":"aa","modelId":"m","cooldownUntil":1702592000000,"failureCount":1,'
        '"lastError":"x","lastUsedAt":5,"updatedAt":7,"note":{"x":[1.5e3,-1,18446744073709551615]}}')
RUNTIME = '"key_cursor":{"value":"0","updatedAt":1700000000000,"by":"you"}'
for number, file in enumerate([
    "\n", '{"version":1,"modelState":{},"runtimeState":{}}',
    '{"version":1,"modelState":{},"runtimeState":{},"x":{"$serde_json::private::RawValue":"[1]"}}',
    '{"version":1,"modelState":{},"runtimeState":{},"x":{"a":1,"$serde_json::private::RawValue":2}}',
    '{"version":1,"modelState":{"aa:m":%s},"runtimeState":{%s},"future":0.1}' % (SLOT, RUNTIME),
]):
    write("state", number, file)

FILE = "PROXY_API_KEY=proxy-~-key\nDASHSCOPE_API_KEYS=sk-~,sk-2\nMODEL_IDS=qwen-max,qwen-plus\n"
for number, text in enumerate([
    FILE, FILE + "export HOST = '::1' # here\nPORT: 80\nMODEL_ID=`a\nb`\nsk-~\nSTATE_PATH=a#b\n",
    FILE + 'CORS_ORIGIN="app://x"\nALL_PROXY=http://u:~@h:1\nUPSTREAM_BASE_URL=https://h/~?\n',
    'PROXY_API_KEY="~\nDASHSCOPE_API_KEYS="~","~"\nMODEL_IDS=\'\n', "\ufeff#\r\nA=\\n\\r\n",
    "!sk-~,sk-1@https://h.example:443,sk-1,\n---\na,b,a", '!"sk-~;", \'x\'', "!~@https://~/~",
]):
    write("config", number, text)
example = (HERE / "../../.env.example").read_text(encoding="utf-8")
write("config", "example", example)
write("config", "all", "\n".join(
    line[2:] if line.startswith("# ") and "=" in line.split()[1] else line
    for line in example.splitlines()))

for number, path in enumerate([
    "/v1/chat/completions", "/v1/messages/count_tokens", "/v1/responses/resp_1/input_items",
    "/v1/files/file-1/content", "/v1/batches/", "/compatible-api/v1/reranks",
    "/api/v1/services/aigc/text-generation/generation", "/api/v1/apps/a/completion",
    "/api/v1/tasks/0f-1/cancel", "/api/v1/uploads", "/compatible-mode/v1/embeddings",
    "/apps/anthropic/v1/messages", "/v1/files/../chat", "/v1/files/a%2fb", "/api/v1/services//a",
    "/v1/models/qwen3.7-plus", "/models/reset", "/metrics",
]):
    for choice, method in enumerate(METHODS):
        write("route", f"{number}-{method}", bytes([choice]) + path.encode())
