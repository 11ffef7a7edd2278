//! DashScope's routes besides chat and messages, and what belongs to the key that made it: tasks,
//! files, batches and stored responses exist for that key only.
//!
//! Answers that were captured are spelled out as in [`answers`]; the others are
//! documented only, and their field order means nothing.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::answers::{self, Question};
use super::output::Output;
use super::script::{End, Framing, Part, Script};
use super::shapes;

/// What was made, and by which key.
#[derive(Default)]
pub(super) struct Made(BTreeMap<String, (String, Value)>);

impl Made {
    fn keep(&mut self, id: String, key: &str, thing: Value) -> Value {
        self.0.insert(id, (key.to_owned(), thing.clone()));
        thing
    }

    /// What this key made under this identifier.
    fn of(&self, id: &str, key: &str) -> Option<&Value> {
        self.0.get(id).filter(|(owner, _)| owner == key).map(|(_, thing)| thing)
    }

    fn remove(&mut self, id: &str, key: &str) -> Option<Value> {
        self.of(id, key)?;
        self.0.remove(id).map(|(_, thing)| thing)
    }

    /// Everything of one kind that this key made.
    fn list(&self, kind: &str, key: &str) -> Value {
        let own = self.0.values().filter(|(owner, thing)| owner == key && thing["object"] == kind);
        json!({"object": "list", "data": own.map(|(_, thing)| thing).collect::<Vec<_>>(), "has_more": false})
    }
}

/// Whose envelope an error has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Envelope {
    Nested,
    Flat,
}

/// A request with everything that its answer takes.
struct Route<'a> {
    question: &'a Question<'a>,
    envelope: Envelope,
    key: &'a str,
    body: Value,
    script: &'a mut Script,
    made: &'a mut Made,
}

/// What DashScope would answer, if the path is one of these.
pub(super) fn normal(
    question: &Question<'_>,
    script: &mut Script,
    made: &mut Made,
) -> Option<Output> {
    let path = question.request.path();
    let (envelope, rest) = match path {
        "/compatible-api/v1/reranks" => (Envelope::Nested, "reranks"),
        "/apps/anthropic/v1/messages/count_tokens" => (Envelope::Flat, "count_tokens"),
        _ => match (path.strip_prefix("/compatible-mode/v1/"), path.strip_prefix("/api/v1/")) {
            (Some("chat/completions"), _) | (None, None) => return None,
            (Some(rest), _) => (Envelope::Nested, rest),
            (None, Some(rest)) => (Envelope::Flat, rest),
        },
    };
    let words: Vec<&str> = rest.trim_end_matches('/').split('/').collect();
    let is_async = question.request.header("x-dashscope-async") == Some("enable");
    if words[0] == "services" && !is_async && words.last() != Some(&"image-synthesis") {
        return None;
    }
    let key = question.key.filter(|key| script.knows_key(key));
    let body = serde_json::from_slice(&question.request.body).unwrap_or_default();
    let mut route = Route { question, envelope, key: key.unwrap_or_default(), body, script, made };
    if key.is_none() {
        let code = route.either("invalid_api_key", "InvalidApiKey");
        return Some(route.error(401, code, "Invalid API-key provided."));
    }
    match envelope {
        Envelope::Nested => route.compatible(&words),
        Envelope::Flat => route.native(&words, is_async),
    }
}

impl Route<'_> {
    fn compatible(&mut self, words: &[&str]) -> Option<Output> {
        let method = self.question.request.method.as_str();
        Some(match (method, words) {
            ("POST", ["completions"]) => self.with_model(Self::completion),
            ("POST", ["responses"]) => self.with_model(Self::response),
            ("POST", ["responses", "compact"]) => self.with_model(Self::compaction),
            ("POST", ["responses", "input_tokens"]) => self.ok(json!({
                "object": "response.input_tokens",
                "input_tokens": answers::prompt_tokens(self.question),
            })),
            ("POST", ["embeddings"]) => self.with_model(Self::embedding),
            ("POST", ["reranks"]) => self.with_model(Self::rerank),
            ("POST", ["files"]) => self.file(),
            ("POST", ["batches"]) => self.batch(),
            ("GET", ["models"]) => self.ok(
                r#"{"object":"list","data":[{"id":"qwen3.7-plus","object":"model","created":1757000000,"owned_by":"system"}]}"#,
            ),
            ("GET", ["files"]) => self.ok(self.made.list("file", self.key)),
            ("GET", ["batches"]) => self.ok(self.made.list("batch", self.key)),
            ("GET", ["files", id, "content"]) if self.made.of(id, self.key).is_some() => {
                self.ok(format!("the content of {id}"))
            }
            ("GET", ["responses", id, "input_items"]) if self.made.of(id, self.key).is_some() => {
                self.ok(json!({"object": "list", "data": [], "has_more": false}))
            }
            ("GET", ["files" | "batches" | "responses", id]) => self.found(id),
            ("POST", ["batches", id, "cancel"]) => self.found(id),
            ("DELETE", ["files" | "responses", id]) => {
                match self.made.remove(id, self.key) {
                    Some(thing) => self.ok(
                        json!({"id": id, "object": thing["object"], "deleted": true}),
                    ),
                    None => self.missing(),
                }
            }
            _ => self.missing(),
        })
    }

    fn native(&mut self, words: &[&str], is_async: bool) -> Option<Output> {
        let id = self.question.id;
        let method = self.question.request.method.as_str();
        Some(match (method, words) {
            ("POST", ["count_tokens"]) if self.question.model.is_none() => {
                self.error(400, "InvalidParameter", "Model not exist.")
            }
            ("POST", ["count_tokens"]) => {
                self.ok(json!({"input_tokens": answers::prompt_tokens(self.question)}))
            }
            ("POST", ["services", ..]) if !is_async => self.error(
                403,
                "AccessDenied",
                "current user api does not support synchronous calls.",
            ),
            ("POST", ["services", ..]) => self.with_model(Self::task),
            ("GET", ["tasks"]) => self.ok(self.made.list("task", self.key)),
            ("GET", ["tasks", task]) => match self.made.of(task, self.key) {
                Some(_) => self.ok(format!(
                    r#"{{"request_id":"{id}","output":{{"task_id":"{task}","task_status":"SUCCEEDED","submit_time":"2026-03-01 17:38:24.817","scheduled_time":"2026-03-01 17:38:24.831","end_time":"2026-03-01 17:38:25.101","results":[{{"url":"https://example.invalid/{task}.png"}}],"task_metrics":{{"TOTAL":1,"SUCCEEDED":1,"FAILED":0}}}},"usage":{{"image_count":1}}}}"#
                )),
                // A task of another key is no error.
                None => self.ok(format!(
                    r#"{{"request_id":"{id}","output":{{"task_id":"{task}","task_status":"UNKNOWN"}}}}"#
                )),
            },
            ("POST", ["tasks", task, "cancel"]) if self.made.of(task, self.key).is_some() => {
                self.ok(json!({"request_id": id}))
            }
            ("POST", ["files"]) => {
                let file = json!({"file_id": id, "name": "file"});
                self.made.keep(id.to_owned(), self.key, file.clone());
                self.ok(json!({"request_id": id, "data": {"uploaded_files": [file], "failed_uploads": []}}))
            }
            ("GET" | "DELETE", ["files", file]) if self.made.of(file, self.key).is_some() => {
                self.ok(json!({"request_id": id, "data": self.made.of(file, self.key)}))
            }
            ("GET", ["uploads"]) => self.ok(json!({"request_id": id, "data": {
                "policy": "eyJ=", "signature": "s=", "oss_access_key_id": "LTAI",
                "upload_dir": format!("dashscope-instant/5f/2026-03-01/{id}"),
                "upload_host": "https://dashscope-file-mgr.oss-cn-beijing.aliyuncs.com",
                "expire_in_seconds": "300", "max_file_size_mb": "100",
                "x_oss_object_acl": "private", "x_oss_forbid_overwrite": "true",
            }})),
            ("POST", ["apps", _, "completion"]) => self.ok(format!(
                r#"{{"output":{{"finish_reason":"stop","session_id":"{id}","text":"hello"}},"usage":{{"models":[{{"output_tokens":1,"model_id":"qwen-plus","input_tokens":2}}]}},"request_id":"{id}"}}"#
            )),
            ("POST", ["tokenizer"]) => self.ok(format!(
                r#"{{"output":{{"token_ids":[108386],"tokens":["hello"]}},"usage":{{"input_tokens":1}},"request_id":"{id}"}}"#
            )),
            _ => self.missing(),
        })
    }

    /// Answers if there is such a model and it has quota left.
    fn with_model(&mut self, answer: impl Fn(&mut Self, &str) -> Output) -> Output {
        let Some(model) = self.question.model.filter(|model| self.script.knows_model(model)) else {
            let message = "The model does not exist or you do not have access to it.";
            return match self.envelope {
                Envelope::Nested => self.error(404, "model_not_found", message),
                Envelope::Flat => self.error(400, "InvalidParameter", "Model not exist."),
            };
        };
        if !self.script.spend(self.key, model) {
            return self.error(403, shapes::CODE, shapes::MESSAGE);
        }
        answer(self, model)
    }

    fn completion(&mut self, model: &str) -> Output {
        let id = self.question.id;
        let chunk = |text: &str, end: Value| {
            json!({"id": format!("cmpl-{id}"), "object": "text_completion", "created": self.seconds(), "model": model,
                "choices": [{"text": text, "index": 0, "logprobs": null, "finish_reason": end}]})
        };
        if self.is_streamed() {
            let chunks =
                [chunk("This answer comes from ", Value::Null), chunk(model, "stop".into())];
            let events = chunks.iter().map(|chunk| format!("data: {chunk}\n\n"));
            return self.stream(events.chain(["data: [DONE]\n\n".to_owned()]).collect());
        }
        let mut body = chunk(&format!("This answer comes from {model}."), "stop".into());
        let prompt = answers::prompt_tokens(self.question);
        body["usage"] =
            json!({"prompt_tokens": prompt, "completion_tokens": 6, "total_tokens": prompt + 6});
        self.ok(body)
    }

    fn response(&mut self, model: &str) -> Output {
        if let Some(before) = self.body["previous_response_id"].as_str()
            && self.made.of(before, self.key).is_none()
        {
            return self.missing();
        }
        let id = format!("resp_{}", self.question.id);
        let text = format!("This answer comes from {model}.");
        let part = json!({"type": "output_text", "text": text, "annotations": []});
        let item = json!({"type": "message", "id": format!("msg_{}", self.question.id), "status": "completed",
            "role": "assistant", "content": [part]});
        let input = answers::prompt_tokens(self.question);
        let begun = json!({"id": id, "object": "response", "created_at": self.seconds(), "model": model,
            "status": "in_progress", "output": [], "error": null, "incomplete_details": null,
            "instructions": null, "metadata": {}, "parallel_tool_calls": true, "temperature": null,
            "tool_choice": "auto", "tools": [], "top_p": null});
        let mut whole = begun.clone();
        whole["status"] = "completed".into();
        whole["output"] = json!([item]);
        whole["usage"] = json!({"input_tokens": input, "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 6, "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": input + 6});
        if self.body["store"] != false {
            self.made.keep(id, self.key, whole.clone());
        }
        if !self.is_streamed() {
            return self.ok(whole);
        }
        let mut empty = item.clone();
        (empty["status"], empty["content"]) = ("in_progress".into(), json!([]));
        let place = |kind: &str, more: Value| {
            let mut event =
                json!({"type": kind, "item_id": item["id"], "output_index": 0, "content_index": 0});
            event.as_object_mut().into_iter().for_each(|event| {
                event.extend(more.as_object().cloned().unwrap_or_default());
            });
            event
        };
        let no_text = json!({"type": "output_text", "text": "", "annotations": []});
        let events = [
            json!({"type": "response.created", "response": begun}),
            json!({"type": "response.output_item.added", "output_index": 0, "item": empty}),
            place("response.content_part.added", json!({"part": no_text})),
            place("response.output_text.delta", json!({"delta": text, "logprobs": []})),
            place("response.output_text.done", json!({"text": text, "logprobs": []})),
            place("response.content_part.done", json!({"part": part})),
            json!({"type": "response.output_item.done", "output_index": 0, "item": item}),
            json!({"type": "response.completed", "response": whole}),
        ];
        // As captured: native framing, no blank after the colons, no `[DONE]`.
        let framed = events.into_iter().zip(1..).map(|(mut event, number)| {
            event["sequence_number"] = number.into();
            let kind = event["type"].as_str().unwrap_or_default();
            format!("id:{number}\nevent:{kind}\n:HTTP_STATUS/200\ndata:{event}\n\n")
        });
        self.stream(framed.collect())
    }

    fn compaction(&mut self, _: &str) -> Output {
        let id = format!("resp_{}", self.question.id);
        let item = json!({"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAAA"});
        let input = answers::prompt_tokens(self.question);
        self.ok(json!({"id": id, "object": "response.compaction", "created_at": self.seconds(),
            "output": [item], "usage": {"input_tokens": input, "output_tokens": 6,
            "total_tokens": input + 6}}))
    }

    fn embedding(&mut self, model: &str) -> Output {
        let (model, tokens) = (Value::from(model), answers::prompt_tokens(self.question));
        self.ok(format!(
            r#"{{"data":[{{"embedding":[0.0023,-0.0093],"index":0,"object":"embedding"}}],"model":{model},"object":"list","usage":{{"prompt_tokens":{tokens},"total_tokens":{tokens}}},"id":"{}"}}"#,
            self.question.id
        ))
    }

    fn rerank(&mut self, model: &str) -> Output {
        self.ok(json!({"object": "list", "model": model, "id": self.question.id,
            "results": [{"index": 0, "relevance_score": 0.93}], "usage": {"total_tokens": 7}}))
    }

    fn task(&mut self, _: &str) -> Output {
        let id = self.question.id;
        self.made.keep(id.to_owned(), self.key, json!({"object": "task", "task_id": id}));
        self.ok(format!(
            r#"{{"output":{{"task_status":"PENDING","task_id":"{id}"}},"request_id":"{id}"}}"#
        ))
    }

    fn file(&mut self) -> Output {
        let id = format!("file-fe-{}", self.question.id);
        let file = json!({"id": id, "object": "file", "bytes": self.question.request.body.len(),
            "created_at": self.seconds(), "filename": "file", "purpose": "file-extract",
            "status": "processed"});
        let file = self.made.keep(id, self.key, file);
        self.ok(file)
    }

    fn batch(&mut self) -> Output {
        let input = self.body["input_file_id"].as_str().unwrap_or_default();
        if self.made.of(input, self.key).is_none() {
            return self.missing();
        }
        let id = format!("batch_{}", self.question.id);
        let batch = json!({"id": id, "object": "batch", "endpoint": self.body["endpoint"],
            "input_file_id": input, "completion_window": "24h", "status": "validating",
            "created_at": self.seconds()});
        let batch = self.made.keep(id, self.key, batch);
        self.ok(batch)
    }

    fn found(&self, id: &str) -> Output {
        match self.made.of(id, self.key) {
            Some(thing) => self.ok(thing),
            None => self.missing(),
        }
    }

    fn missing(&self) -> Output {
        let code = self.either("not_found", "NotFound");
        self.error(404, code, "No such thing exists for this key.")
    }

    fn is_streamed(&self) -> bool {
        self.body["stream"] == true
    }

    fn seconds(&self) -> u64 {
        self.question.arrived.0 / 1000
    }

    fn either(&self, nested: &'static str, flat: &'static str) -> &'static str {
        match self.envelope {
            Envelope::Nested => nested,
            Envelope::Flat => flat,
        }
    }

    fn ok(&self, body: impl ToString) -> Output {
        self.whole(200, body.to_string())
    }

    fn error(&self, status: u16, code: &str, message: &str) -> Output {
        let id = self.question.id;
        self.whole(
            status,
            match self.envelope {
                Envelope::Nested => shapes::nested(code, code, message, id),
                Envelope::Flat => shapes::flat(code, message, id),
            },
        )
    }

    fn whole(&self, status: u16, body: String) -> Output {
        let headers = answers::gateway_headers(self.question, "application/json", status == 200);
        Output::whole(status, headers, body.into_bytes(), Framing::Chunked)
    }

    fn stream(&self, events: Vec<String>) -> Output {
        let headers = answers::gateway_headers(self.question, "text/event-stream", true);
        let parts = events.into_iter().map(Part::now).collect();
        Output::stream(headers, parts, Framing::Chunked, End::Clean)
    }
}
