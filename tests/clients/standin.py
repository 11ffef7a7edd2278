"""A stand-in of DashScope for the client tests, written from the facts and not from the proxy.

Every key has a quota of successes for each model; beyond it the answer is 403
`AllocationQuota.FreeTierOnly` in the envelope of the path. Tasks, files, batches and stored
responses are known to the key that made them only. What a request's body contains steers its
answer: `standin:gate=NAME` holds every event of a stream but the first until NAME is released
(once for each), `standin:cut` breaks a stream off in the middle, and the tool `get_weather` is
called if it is offered.

What a model cannot take is refused before its quota is looked at, in the words and the framing of
the path: `limits` is {model: {kind: value}}, the kinds are those of `Handler.limit`.
"""

import base64
import json
import re
import struct
import threading
import time
import uuid
from email.parser import BytesParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MESSAGE = (
    "Free quota exhausted. To continue accessing the model on a paid basis, please add funds or "
    'disable the "use free tier only" mode in the management console.'
)
ARGUMENTS = '{"city":"Hangzhou"}'
LIMIT = 20  # seconds that a gate holds at most

PREFIX = "<400> InternalError.Algo.InvalidParameter: "  # of streams

NATIVE = "/api/v1"
COMPATIBLE = "/compatible-mode/v1"
ANTHROPIC = "/apps/anthropic/v1"
TEXT = NATIVE + "/services/aigc/text-generation/generation"
MULTIMODAL = NATIVE + "/services/aigc/multimodal-generation/generation"
IMAGE = NATIVE + "/services/aigc/text2image/image-synthesis"


def text_of(model):
    """The words of every answer: the model that serves, so that a test can see it."""
    return f"Served by {model}."


def pieces_of(model):
    return ["Served ", "by ", model, "."]


class Refusal(Exception):
    """An answer other than 200."""

    def __init__(self, status, code, message, kind=None):
        super().__init__(message)
        self.status, self.code, self.message, self.kind = status, code, message, kind or code


class Limit(Refusal):
    """Something that the model cannot take."""

    def __init__(self, sentence, status=400):
        super().__init__(status, "InvalidParameter", sentence)


class StandIn(ThreadingHTTPServer):
    """Listens on a free port of 127.0.0.1; `serve_forever` serves."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.lock = threading.Condition()
        self.quotas = {}  # key -> successes for each model, None: unlimited
        self.limits = {}  # key -> model -> kind -> value
        self.spent = {}  # (key, model) -> successes
        self.calls = []
        self.made = {}  # identifier -> {"key", "object"}
        self.gates = {}  # name -> releases

    @property
    def origin(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def add_keys(self, keys, quota, limits=None):
        with self.lock:
            self.quotas.update(dict.fromkeys(keys, quota))
            self.limits.update(dict.fromkeys(keys, limits or {}))

    def calls_of(self, keys):
        with self.lock:
            return [call for call in self.calls if call["key"] in keys]

    def release(self, gate):
        with self.lock:
            self.gates[gate] = self.gates.get(gate, 0) + 1
            self.lock.notify_all()

    def await_release(self, gate, count):
        with self.lock:
            self.lock.wait_for(lambda: self.gates.get(gate, 0) >= count, LIMIT)

    def spend(self, key, model):
        with self.lock:
            spent = self.spent.get((key, model), 0)
            if self.quotas[key] is not None and spent >= self.quotas[key]:
                code = "AllocationQuota.FreeTierOnly"
                raise Refusal(403, code, MESSAGE)
            self.spent[key, model] = spent + 1

    def remember(self, id, key, made):
        with self.lock:
            self.made[id] = {"key": key, "object": made, "polls": 0}

    def find(self, id, key):
        with self.lock:
            made = self.made.get(id)
            return made if made and made["key"] == key else None

    def handle_error(self, request, client_address):
        pass  # a caller that left


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server_version, sys_version = "istio-envoy", ""

    def log_message(self, *_):
        pass

    def serve(self):
        self.path_only, _, self.query = self.path.partition("?")
        self.raw = self.read_body()
        try:
            self.body = json.loads(self.raw) if self.raw else {}
        except ValueError:
            self.body = {}
        self.id = str(uuid.uuid4())
        scheme, _, token = (self.headers.get("authorization") or "").partition(" ")
        self.key = token if scheme.lower() == "bearer" else self.headers.get("x-api-key")
        self.model = self.body.get("model") if isinstance(self.body, dict) else None
        self.call = {
            "method": self.command, "target": self.path, "path": self.path_only, "key": self.key,
            "model": self.model, "headers": {k.lower(): v for k, v in self.headers.items()},
            "body": self.body, "status": 200, "left": False,
        }
        with self.server.lock:
            self.server.calls.append(self.call)
        try:
            self.route()
        except Limit as limit:
            self.refuse_beyond(limit)
        except Refusal as refusal:
            self.refuse(refusal)

    do_GET = do_POST = do_DELETE = do_PUT = serve

    def read_body(self):
        if "chunked" not in (self.headers.get("transfer-encoding") or ""):
            return self.rfile.read(int(self.headers.get("content-length") or 0))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return body

    # --- answers ---------------------------------------------------------------------------

    def head(self, status, content_type):
        self.call["status"] = status
        self.send_response(status)
        self.send_header("content-type", content_type)
        self.send_header("x-request-id", self.id)
        self.send_header("x-dashscope-call-gateway", "true")
        self.send_header("set-cookie", f"acw_tc={self.id};path=/;HttpOnly;Max-Age=1800")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()

    def chunk(self, data):
        try:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        except OSError:
            self.call["left"] = True
            raise

    def json(self, value, status=200):
        self.head(status, "application/json")
        self.chunk(json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode())
        self.wfile.write(b"0\r\n\r\n")

    def refuse(self, refusal):
        code, message = refusal.code, refusal.message
        if self.path_only.startswith("/compatible-"):
            error = {"message": message, "type": refusal.kind, "param": None, "code": code}
            self.json({"error": error, "id": f"chatcmpl-{self.id}", "request_id": self.id},
                      refusal.status)
        elif self.path_only.startswith(ANTHROPIC):
            self.json({"request_id": self.id, "code": code, "message": message}, refusal.status)
        elif self.streams_natively():
            # Seen with other codes: the status is in the first event of a 200.
            body = json.dumps({"code": code, "message": message, "request_id": self.id})
            event = f"id:1\nevent:error\n:HTTP_STATUS/{refusal.status}\ndata:{body}\n\n"
            self.events([event])
            self.call["status"] = refusal.status
        else:
            self.json({"code": code, "message": message, "request_id": self.id}, refusal.status)

    def refuse_beyond(self, limit):
        """A refusal that is about the model: where a stream was asked for, it looks like one."""
        flat = {"request_id": self.id, "code": limit.code, "message": limit.message}
        prefixed = flat | {"message": PREFIX + limit.message}
        native = self.path_only.startswith(NATIVE)
        if native and self.streams_natively():
            head = f"id:1\nevent:error\n:HTTP_STATUS/{limit.status}\n"
            self.stream_refusal(f"{head}data:{json.dumps(prefixed)}\n\n", limit.status)
        elif native:
            self.json(flat, limit.status)
        elif self.path_only.startswith(ANTHROPIC):
            if self.body.get("stream"):
                event = f"event:error\ndata:{json.dumps(prefixed)}\n\n"
                return self.stream_refusal(event, limit.status)
            self.json(flat, limit.status)
        else:
            error = {"code": "invalid_parameter_error", "param": None, "message": limit.message,
                     "type": "invalid_request_error"}
            if self.path_only.endswith("/chat/completions") and self.body.get("stream"):
                said = {"error": error, "id": f"chatcmpl-{self.id}"}
                return self.stream_refusal(f"data: {json.dumps(said)}\n\n", limit.status)
            self.json({"error": error, "request_id": self.id}, limit.status)

    def stream_refusal(self, event, status):
        self.head(status, "text/event-stream;charset=UTF-8")
        self.chunk(event.encode())
        self.wfile.write(b"0\r\n\r\n")

    def events(self, events):
        gate = re.search(rb"standin:gate=([\w-]+)", self.raw)
        cut = b"standin:cut" in self.raw
        self.head(200, "text/event-stream;charset=UTF-8")
        for number, event in enumerate(events):
            if gate and number:
                self.server.await_release(gate[1].decode(), number)
            if cut and number == 2:
                self.close_connection = True
                return
            self.chunk(event.encode())
        self.wfile.write(b"0\r\n\r\n")

    # --- routes ----------------------------------------------------------------------------

    def route(self):
        if self.key not in self.server.quotas:
            if self.path_only.startswith("/compatible-"):
                raise Refusal(401, "invalid_api_key", "Incorrect API key provided.",
                              "invalid_request_error")
            raise Refusal(401, "InvalidApiKey", "Invalid API-key provided.")
        handlers = {
            COMPATIBLE + "/chat/completions": self.chat,
            COMPATIBLE + "/completions": self.completion,
            COMPATIBLE + "/responses": self.response,
            COMPATIBLE + "/embeddings": self.embedding,
            "/compatible-api/v1/reranks": self.rerank,
            ANTHROPIC + "/messages": self.message,
            TEXT: self.text,
            MULTIMODAL: self.text,
            IMAGE: self.image,
            NATIVE + "/services/embeddings/text-embedding/text-embedding": self.native_embedding,
            NATIVE + "/services/rerank/text-rerank/text-rerank": self.native_rerank,
            NATIVE + "/tokenizer": self.tokenizer,
        }
        if self.command == "POST" and self.path_only in handlers:
            if not self.model:
                raise Refusal(400, "invalid_parameter_error", "you must provide a model parameter")
            if previous := self.body.get("previous_response_id"):
                if not self.server.find(previous, self.key):
                    raise Refusal(404, "InvalidParameter", f"Response {previous} not found.")
            if self.path_only == IMAGE and self.headers.get("x-dashscope-async") != "enable":
                raise Refusal(403, "AccessDenied",
                              "current user api does not support synchronous calls.")
            for kind, value in self.server.limits[self.key].get(self.model, {}).items():
                self.limit(kind, value)
            self.server.spend(self.key, self.model)
            return handlers[self.path_only]()
        if self.command == "POST" and self.path_only == ANTHROPIC + "/messages/count_tokens":
            return self.json({"input_tokens": self.prompt_tokens()})
        if self.command == "GET" and self.path_only == COMPATIBLE + "/models":
            return self.json({"object": "list", "data": []})
        for prefix, kind in [
            (NATIVE + "/tasks/", self.task),
            (NATIVE + "/files", self.native_files),
            (COMPATIBLE + "/files", self.files),
            (COMPATIBLE + "/batches", self.batches),
            (COMPATIBLE + "/responses/", self.stored_response),
        ]:
            if self.path_only.startswith(prefix):
                return kind(self.path_only[len(prefix):].strip("/"))
        raise Refusal(404, "NotFound", "no such path in the stand-in")

    # --- what a model cannot take --------------------------------------------------------------

    def parameter(self, *names):
        """The first of these, wherever the protocol has it."""
        own = self.body.get("parameters") or {}
        found = (body.get(name) for body in (own, self.body) for name in names)
        return next((value for value in found if value is not None), None)

    def limit(self, kind, value):
        """Raises if the request holds more than `value` of `kind`."""
        match kind:
            case "max_output":
                asked = self.parameter("max_tokens", "max_completion_tokens", "max_output_tokens")
                if (asked or 0) > value:
                    raise Limit(f"Range of max_tokens should be [1, {value}]")
            case "thinking_budget":  # 0: it does not think
                thinking = self.body.get("thinking") or {}
                asked = self.parameter("thinking_budget") or thinking.get("budget_tokens") or 0
                if asked > value:
                    raise Limit("The thinking_budget parameter must be a positive integer and "
                                f"not greater than {value}")
            case "text_only":
                if re.search(rb'"type": ?"(image|image_url|input_image)"|"image": ?"', self.raw):
                    raise Limit("The provided messages input is invalid. The error info is "
                                "[Unexpected item type in content.]")
            case "no_tools":
                if self.body.get("tools"):
                    raise Limit("The tool call is not supported.")
            case "not_on":  # paths that end so
                if self.path_only.endswith(value):
                    raise Limit(f"Unsupported model: '{self.model}'.")
            case _:
                raise ValueError(kind)

    def prompt_tokens(self):
        return len(self.raw) // 4 + 1

    def calls_tool(self):
        tools = self.body.get("tools") or []
        names = [tool.get("name") or tool.get("function", {}).get("name") for tool in tools]
        answered = any(sign in self.raw for sign in
                       [b'"tool_result"', b'"function_call_output"', b'"role":"tool"',
                        b'"role": "tool"'])
        return "get_weather" in names and not answered

    def chat_usage(self):
        prompt = self.prompt_tokens()
        return {"prompt_tokens": prompt, "completion_tokens": 4, "total_tokens": prompt + 4,
                "prompt_tokens_details": {"cached_tokens": 0}}

    def chat(self):
        rest = {"created": int(time.time()), "system_fingerprint": None, "model": self.model,
                "id": f"chatcmpl-{self.id}"}
        call = {"id": f"call_{self.id}", "type": "function",
                "function": {"name": "get_weather", "arguments": ARGUMENTS}}
        uses_tool = self.calls_tool()
        if not self.body.get("stream"):
            message = {"role": "assistant", "content": text_of(self.model)}
            if uses_tool:
                message = {"role": "assistant", "content": "", "tool_calls": [call | {"index": 0}]}
            choice = {"message": message, "index": 0, "logprobs": None,
                      "finish_reason": "tool_calls" if uses_tool else "stop"}
            return self.json({"choices": [choice], "object": "chat.completion",
                              "usage": self.chat_usage(), **rest})

        def event(delta, finish=None, choices=None, usage=None):
            choice = {"delta": delta, "finish_reason": finish, "index": 0, "logprobs": None}
            chunk = {"choices": [choice] if choices is None else choices,
                     "object": "chat.completion.chunk", "usage": usage, **rest}
            return f"data: {json.dumps(chunk)}\n\n"

        events = [event({"content": "", "role": "assistant"})]
        if uses_tool:
            first = call | {"index": 0, "function": {"name": "get_weather", "arguments": ""}}
            events.append(event({"content": None, "tool_calls": [first]}))
            for part in (ARGUMENTS[:7], ARGUMENTS[7:]):
                more = {"index": 0, "id": "", "type": "function", "function": {"arguments": part}}
                events.append(event({"content": None, "tool_calls": [more]}))
            events.append(event({"content": None}, "tool_calls"))
        else:
            events += [event({"content": piece}) for piece in pieces_of(self.model)]
            events.append(event({"content": ""}, "stop"))
        if (self.body.get("stream_options") or {}).get("include_usage"):
            events.append(event(None, choices=[], usage=self.chat_usage()))
        self.events(events + ["data: [DONE]\n\n"])

    def completion(self):
        rest = {"object": "text_completion", "created": int(time.time()), "model": self.model,
                "id": f"cmpl-{self.id}"}
        def choice(text, finish):
            return {"text": text, "finish_reason": finish, "index": 0, "logprobs": None}
        if not self.body.get("stream"):
            return self.json({"choices": [choice(text_of(self.model), "stop")],
                              "usage": self.chat_usage(), **rest})
        chunks = [choice(piece, None) for piece in pieces_of(self.model)] + [choice("", "stop")]
        events = [f"data: {json.dumps({'choices': [c], 'usage': None, **rest})}\n\n" for c in chunks]
        self.events(events + ["data: [DONE]\n\n"])

    def response(self):
        id, usage = f"resp_{self.id}", {
            "input_tokens": self.prompt_tokens(), "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 4, "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": self.prompt_tokens() + 4,
        }
        text = text_of(self.model)
        part = {"type": "output_text", "text": text, "annotations": []}
        item = {"id": f"msg_{self.id}", "type": "message", "role": "assistant",
                "status": "completed", "content": [part]}
        if self.calls_tool():
            item = {"id": f"fc_{self.id}", "type": "function_call", "status": "completed",
                    "call_id": f"call_{self.id}", "name": "get_weather", "arguments": ARGUMENTS}

        def response(status, output, usage=None):
            return {"id": id, "object": "response", "created_at": int(time.time()),
                    "model": self.model, "status": status, "output": output, "usage": usage,
                    "parallel_tool_calls": False, "tool_choice": "auto", "tools": [],
                    "error": None, "incomplete_details": None, "instructions": None,
                    "metadata": {}, "temperature": None, "top_p": None}

        done = response("completed", [item], usage)
        if self.body.get("store") is not False:
            self.server.remember(id, self.key, done)
        if not self.body.get("stream"):
            return self.json(done)
        start = response("in_progress", [])
        at = {"item_id": item["id"], "output_index": 0}
        events = [("response.created", {"response": start}),
                  ("response.in_progress", {"response": start})]
        if item["type"] == "message":
            where = at | {"content_index": 0}
            began = item | {"status": "in_progress", "content": []}
            events += [
                ("response.output_item.added", {"output_index": 0, "item": began}),
                ("response.content_part.added", where | {"part": part | {"text": ""}}),
                *[("response.output_text.delta", where | {"delta": piece, "logprobs": []})
                  for piece in pieces_of(self.model)],
                ("response.output_text.done", where | {"text": text, "logprobs": []}),
                ("response.content_part.done", where | {"part": part}),
            ]
        else:
            began = item | {"status": "in_progress", "arguments": ""}
            events += [
                ("response.output_item.added", {"output_index": 0, "item": began}),
                ("response.function_call_arguments.delta", at | {"delta": ARGUMENTS}),
                ("response.function_call_arguments.done",
                 at | {"arguments": ARGUMENTS, "name": "get_weather"}),
            ]
        events += [("response.output_item.done", {"output_index": 0, "item": item}),
                   ("response.completed", {"response": done})]
        self.events([
            f"id:{n}\nevent:{name}\n:HTTP_STATUS/200\n"
            f"data:{json.dumps({'type': name, 'sequence_number': n - 1, **fields})}\n\n"
            for n, (name, fields) in enumerate(events, 1)
        ])

    def stored_response(self, id):
        made = self.server.find(id, self.key)
        if not made:
            raise Refusal(404, "InvalidParameter", f"Response {id} not found.")
        if self.command == "DELETE":
            return self.json({"id": id, "object": "response", "deleted": True})
        self.json(made["object"])

    def texts(self):
        wanted = self.body.get("input", [])
        return [wanted] if isinstance(wanted, str) else wanted

    def embedding(self):
        def vector(index):
            numbers = [float(index), 0.5, -0.25]
            if self.body.get("encoding_format") == "base64":
                return base64.b64encode(struct.pack("<3f", *numbers)).decode()
            return numbers
        data = [{"embedding": vector(n), "index": n, "object": "embedding"}
                for n, _ in enumerate(self.texts())]
        self.json({"data": data, "model": self.model, "object": "list", "id": self.id,
                   "usage": {"prompt_tokens": 3, "total_tokens": 3}})

    def rerank(self):
        documents = self.body["documents"]
        results = [{"index": n, "relevance_score": 0.9 - n / 10} for n in range(len(documents))]
        self.json({"object": "list", "results": results, "model": self.model, "id": self.id,
                   "usage": {"total_tokens": 9}})

    def message(self):
        uses_tool = self.calls_tool()
        usage = {"input_tokens": self.prompt_tokens(), "output_tokens": 4,
                 "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0,
                 "prompt_tokens_details": {"cached_tokens": 0}}
        start = {"id": f"msg_{self.id}", "type": "message", "role": "assistant",
                 "model": self.model}
        tool = {"type": "tool_use", "id": f"toolu_{self.id}", "name": "get_weather"}
        end = {"stop_reason": "tool_use" if uses_tool else "end_turn", "stop_sequence": None}
        if not self.body.get("stream"):
            block = {"type": "text", "text": text_of(self.model)}
            if uses_tool:
                block = tool | {"input": json.loads(ARGUMENTS)}
            return self.json({**start, "content": [block], **end, "usage": usage})

        def event(name, **fields):
            return f"event:{name}\ndata:{json.dumps({'type': name, **fields})}\n\n"

        provisional = {"input_tokens": 2, "output_tokens": 0}
        block = tool | {"input": {}} if uses_tool else {"type": "text", "text": ""}
        if uses_tool:
            deltas = [{"type": "input_json_delta", "partial_json": part}
                      for part in (ARGUMENTS[:7], ARGUMENTS[7:])]
        else:
            deltas = [{"type": "text_delta", "text": piece} for piece in pieces_of(self.model)]
        self.events([
            event("ping"),
            event("message_start", message={**start, "content": [], "stop_reason": None,
                                            "stop_sequence": None, "usage": provisional}),
            event("content_block_start", index=0, content_block=block),
            *[event("content_block_delta", index=0, delta=delta) for delta in deltas],
            event("content_block_stop", index=0),
            event("message_delta", delta=end, usage=usage),
            event("message_stop"),
        ])

    # --- DashScope's own protocol ----------------------------------------------------------

    def streams_natively(self):
        return (self.headers.get("x-dashscope-sse") == "enable"
                or "text/event-stream" in (self.headers.get("accept") or ""))

    def native(self, output, usage=None):
        return {"output": output, "usage": usage or {}, "request_id": self.id}

    def text(self):
        parameters = self.body.get("parameters") or {}
        multimodal = self.path_only == MULTIMODAL
        as_message = multimodal or parameters.get("result_format") == "message"
        usage = {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7}

        def output(text, finish):
            if not as_message:
                return {"text": text, "finish_reason": finish}
            content = [{"text": text}] if multimodal else text
            message = {"role": "assistant", "content": content}
            return {"choices": [{"finish_reason": finish, "message": message}]}

        if not self.streams_natively():
            return self.json(self.native(output(text_of(self.model), "stop"), usage))
        events, so_far = [], ""
        pieces = pieces_of(self.model)
        for number, piece in enumerate(pieces, 1):
            so_far += piece
            text = piece if parameters.get("incremental_output") else so_far
            frame = self.native(output(text, "stop" if number == len(pieces) else "null"), usage)
            events.append(f"id:{number}\nevent:result\n:HTTP_STATUS/200\ndata:{json.dumps(frame)}\n\n")
        self.events(events)

    def image(self):
        self.server.remember(self.id, self.key, None)
        self.json({"output": {"task_status": "PENDING", "task_id": self.id},
                   "request_id": self.id})

    def task(self, id):
        task = self.server.find(id, self.key)
        if not task:
            return self.json(self.native({"task_id": id, "task_status": "UNKNOWN"}))
        task["polls"] += 1
        if task["polls"] == 1:
            return self.json({"output": {"task_id": id, "task_status": "RUNNING"},
                              "request_id": self.id})
        self.json(self.native(
            {"task_id": id, "task_status": "SUCCEEDED",
             "results": [{"url": "https://example.invalid/1.png"}],
             "task_metrics": {"TOTAL": 1, "SUCCEEDED": 1, "FAILED": 0}}, {"image_count": 1}))

    def native_embedding(self):
        texts = self.body["input"]["texts"]
        self.json(self.native({"embeddings": [
            {"text_index": n, "embedding": [float(n), 0.5]} for n in range(len(texts))
        ]}, {"total_tokens": 3}))

    def native_rerank(self):
        documents = self.body["input"]["documents"]
        self.json(self.native({"results": [
            {"index": n, "relevance_score": 0.9 - n / 10} for n in range(len(documents))
        ]}, {"total_tokens": 9}))

    def tokenizer(self):
        self.json(self.native({"token_ids": [1, 2, 3], "tokens": ["a", "b", "c"]},
                              {"input_tokens": 3}))

    # --- files and batches -----------------------------------------------------------------

    def form(self):
        head = f"content-type: {self.headers['content-type']}\r\n\r\n".encode()
        parts = BytesParser().parsebytes(head + self.raw).get_payload()
        fields = {}
        for part in parts:
            name = part.get_param("name", header="content-disposition")
            fields[name] = (part.get_filename(), part.get_payload(decode=True))
        return fields

    def files(self, rest):
        if self.command == "POST":
            fields = self.form()
            name, content = fields["file"]
            made = {"id": f"file-fe-{self.id}", "object": "file", "bytes": len(content),
                    "created_at": int(time.time()), "filename": name, "status": "processed",
                    "purpose": fields["purpose"][1].decode()}
            self.server.remember(made["id"], self.key, made | {"content": content.decode()})
            return self.json(made)
        with self.server.lock:
            made = [made["object"] for id, made in self.server.made.items()
                    if made["key"] == self.key and id.startswith("file-")]
        if not rest:
            data = [{k: v for k, v in file.items() if k != "content"} for file in made]
            return self.json({"object": "list", "data": data, "has_more": False})
        id, _, what = rest.partition("/")
        file = next((dict(file) for file in made if file["id"] == id), None)
        if not file:
            raise Refusal(404, "not_found", f"No such File object: {id}")
        content = file.pop("content")
        if what == "content":
            self.head(200, "application/octet-stream")
            self.chunk(content.encode())
            return self.wfile.write(b"0\r\n\r\n")
        if self.command == "DELETE":
            return self.json({"id": id, "object": "file", "deleted": True})
        self.json(file)

    def batches(self, rest):
        if self.command == "POST" and not rest:
            made = {"id": f"batch_{self.id}", "object": "batch", "status": "validating",
                    "created_at": int(time.time()), **self.body}
            self.server.remember(made["id"], self.key, made)
            return self.json(made)
        made = self.server.find(rest.partition("/")[0], self.key)
        if not made:
            raise Refusal(404, "not_found", f"No such Batch object: {rest}")
        self.json(made["object"])

    def native_files(self, rest):
        if self.command == "POST":
            uploaded = []
            for name, content in self.form().values():
                if name is not None:
                    id = str(uuid.uuid4())
                    self.server.remember(id, self.key, {"file_id": id, "name": name,
                                                        "size": len(content)})
                    uploaded.append({"file_id": id, "name": name})
            return self.json({"data": {"uploaded_files": uploaded, "failed_uploads": []},
                              "request_id": self.id})
        made = self.server.find(rest, self.key)
        if not made:
            raise Refusal(404, "NotFound", f"File {rest} not found.")
        self.json({"data": made["object"], "request_id": self.id})
