//! Identifiers stay with the key that made them: tasks, files, batches, stored responses.
#![allow(clippy::unwrap_used, reason = "the helpers of tests panic as tests do")]

use dashscope_proxy::standin::{End, Reply, Shape, StandIn};
use serde_json::{Value, json};

use crate::envelope::{CHAT, message_on};
use crate::failover::exhausted;
use crate::harness::{AUTH, Answer, Proxy, get, key_hash, post, request};

const IMAGE: &str = "/api/v1/services/aigc/text2image/image-synthesis";
const RESPONSES: &str = "/v1/responses";

/// The text at a place of an answer that went well.
#[track_caller]
fn text_at(answer: &Answer, pointer: &str) -> String {
    assert_eq!(answer.status, 200, "{answer:?}");
    let body = answer.json();
    body.pointer(pointer).and_then(Value::as_str).unwrap_or_else(|| panic!("{answer:?}")).to_owned()
}

fn submit(proxy: &Proxy<'_>) -> String {
    let headers = [AUTH, ("x-dashscope-async", "enable")];
    let body = r#"{"model":"wanx","input":{"prompt":"a cat"}}"#;
    text_at(&request(proxy.address(), "POST", IMAGE, &headers, body), "/output/task_id")
}

fn poll(proxy: &Proxy<'_>, task: &str) -> String {
    text_at(&get(proxy, &format!("/api/v1/tasks/{task}")), "/output/task_status")
}

/// Uses up the first key: the second is the current one from here on.
fn move_on(standin: &StandIn, proxy: &Proxy<'_>) {
    for model in ["m1", "m2", "m3"] {
        standin.set_quota("k1", model, 0);
    }
    assert_eq!(post(proxy, CHAT, "{}").status, 200);
    assert_eq!(last_key(standin), "k2");
}

fn last_key(standin: &StandIn) -> String {
    standin.calls().pop().unwrap().key.unwrap()
}

/// A proxy whose current key is the second one, with everything else fresh.
fn at_second_key(standin: &StandIn) -> Proxy<'_> {
    let state = json!({"version": 1, "modelState": {},
        "runtimeState": {"key_cursor": {"value": "1", "updatedAt": 1}}});
    Proxy::builder(standin).state(&state.to_string()).start()
}

/// Restarts with the first key as the current one, although the second has everything left.
fn back_to_first_key(proxy: &mut Proxy<'_>) {
    proxy.stop();
    let mut state = proxy.state();
    state["runtimeState"]["key_cursor"]["value"] = "0".into();
    std::fs::write(proxy.state_path(), state.to_string()).unwrap();
    proxy.restart();
}

fn pins(state: &Value) -> Vec<(String, String)> {
    let records = state["runtimeState"].as_object().unwrap().iter();
    let pins = records.filter_map(|(name, record)| {
        let id = name.strip_prefix("pin:")?;
        assert_eq!(record.as_object().unwrap().len(), 2, "{record}");
        assert!(record["updatedAt"].is_u64(), "{record}");
        Some((id.to_owned(), record["value"].as_str().unwrap().to_owned()))
    });
    pins.collect()
}

#[test]
fn a_task_is_polled_with_the_key_that_made_it_after_rotation_restart_and_power_cut() {
    let standin = StandIn::start().unwrap();
    let mut proxy = Proxy::start(&standin);
    let task = submit(&proxy);
    assert_eq!(standin.slots(), ["k1/wanx"]);
    move_on(&standin, &proxy);
    assert_eq!(poll(&proxy, &task), "SUCCEEDED");
    proxy.restart();
    assert_eq!(poll(&proxy, &task), "SUCCEEDED");
    proxy.kill9();
    proxy.restart();
    assert_eq!(poll(&proxy, &task), "SUCCEEDED");
    let cancel = format!("/api/v1/tasks/{task}/cancel");
    assert_eq!(request(proxy.address(), "POST", &cancel, &[AUTH], "").status, 200);
    assert_eq!(last_key(&standin), "k1");
    // The next submission is the current key's.
    let next = submit(&proxy);
    assert_eq!(last_key(&standin), "k2");
    assert_eq!(
        (poll(&proxy, &next), poll(&proxy, &task)),
        ("SUCCEEDED".into(), "SUCCEEDED".into())
    );
}

#[test]
fn an_identifier_is_on_disk_when_its_answer_has_been_read() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    for _ in 0..5 {
        let task = submit(&proxy);
        let state = proxy.state();
        assert!(pins(&state).contains(&(task, key_hash("k1"))), "{state:#}");
    }
}

#[test]
fn a_task_survives_a_power_cut_right_after_its_answer() {
    let standin = StandIn::start().unwrap();
    let mut proxy = Proxy::start(&standin);
    let task = submit(&proxy);
    proxy.kill9();
    proxy.restart();
    move_on(&standin, &proxy);
    assert_eq!(poll(&proxy, &task), "SUCCEEDED");
}

#[test]
fn an_identifier_that_nobody_knows_goes_to_the_current_key() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    assert_eq!((poll(&proxy, "1111"), last_key(&standin)), ("UNKNOWN".into(), "k1".into()));
    move_on(&standin, &proxy);
    assert_eq!((poll(&proxy, "1111"), last_key(&standin)), ("UNKNOWN".into(), "k2".into()));
    for path in ["/api/v1/tasks", "/v1/files", "/v1/batches", "/api/v1/uploads?action=getPolicy"] {
        assert_eq!(get(&proxy, path).status, 200, "{path}");
        assert_eq!(last_key(&standin), "k2", "{path}");
    }
    assert_eq!(get(&proxy, "/v1/files/file-fe-nobody").status, 404);
    assert_eq!(last_key(&standin), "k2");
}

#[test]
fn a_poll_never_rotates_and_teaches_nothing() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    let task = submit(&proxy);
    let paths =
        [format!("/api/v1/tasks/{task}"), "/v1/files/f-1".into(), "/v1/responses/r_1".into()];
    let before = get(&proxy, "/models/status").json()["models"].clone();
    for path in &paths {
        for status in [400, 403, 404, 429, 500, 503] {
            let calls = standin.call_count();
            let body = format!(r#"{{"code":"Odd","message":"{status}"}}"#);
            standin.reply("*", "*", Reply::json(status, body.as_bytes()));
            let answer = get(&proxy, path);
            assert_eq!((answer.status, answer.text()), (status, body), "{path}");
            assert_eq!(answer.header("x-proxy-attempts"), Some("1"), "{path}");
            assert_eq!(standin.call_count(), calls + 1, "{path} {status}");
        }
        let calls = standin.call_count();
        standin.reply("*", "*", Reply::Exhausted(Shape::Flat));
        assert_eq!(get(&proxy, path).status, 403, "{path}");
        assert_eq!(standin.call_count(), calls + 1, "{path}");
    }
    assert_eq!(get(&proxy, "/models/status").json()["models"], before);
    // Nothing was benched either.
    standin.clear();
    assert_eq!(post(&proxy, CHAT, "{}").status, 200);
    assert_eq!(standin.slots().last().unwrap(), "k1/m1");
}

#[test]
fn a_poll_whose_key_is_rejected_is_502_and_not_the_clients_401() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    let task = submit(&proxy);
    standin.set_keys(&["k2"]);
    for path in
        [format!("/api/v1/tasks/{task}"), "/v1/files/f-1".into(), "/v1/responses/r_1".into()]
    {
        let calls = standin.call_count();
        // An identifier that nobody knows would go on to the second key: it rests, the first not.
        standin.set_keys(if path.contains(&task) { &["k2"] } else { &[] });
        let answer = get(&proxy, &path);
        assert_eq!(answer.status, 502, "{path}: {answer:?}");
        assert!(answer.text().contains("upstream_key_rejected"), "{answer:?}");
        assert!(answer.text().contains(&key_hash("k1")[..12]), "{path}: {answer:?}");
        assert_eq!(standin.call_count(), calls + 1, "{path}");
    }
}

#[test]
fn files_and_batches_stay_with_their_key() {
    let standin = StandIn::start().unwrap();
    let mut proxy = Proxy::start(&standin);
    let form = ("content-type", "multipart/form-data; boundary=B");
    let part = "--B\r\ncontent-disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--B--\r\n";
    let upload =
        |proxy: &Proxy<'_>, path: &str| request(proxy.address(), "POST", path, &[AUTH, form], part);
    let file = text_at(&upload(&proxy, "/v1/files"), "/id");
    let native = text_at(&upload(&proxy, "/api/v1/files"), "/data/uploaded_files/0/file_id");
    move_on(&standin, &proxy);
    proxy.restart();
    for path in [
        format!("/v1/files/{file}"),
        format!("/v1/files/{file}/content"),
        format!("/compatible-mode/v1/files/{file}"),
        format!("/api/v1/files/{native}"),
    ] {
        assert_eq!(get(&proxy, &path).status, 200, "{path}");
        assert_eq!(last_key(&standin), "k1", "{path}");
    }
    let body = format!(r#"{{"input_file_id":"{file}","endpoint":"/v1/chat/completions"}}"#);
    let batch = text_at(&post(&proxy, "/v1/batches", &body), "/id");
    assert_eq!(last_key(&standin), "k1");
    assert_eq!(standin.calls().pop().unwrap().body, body.as_bytes());
    assert_eq!(get(&proxy, &format!("/v1/batches/{batch}")).status, 200);
    let cancel = format!("/v1/batches/{batch}/cancel");
    assert_eq!(request(proxy.address(), "POST", &cancel, &[AUTH], "").status, 200);
    let path = format!("/v1/files/{file}");
    assert_eq!(request(proxy.address(), "DELETE", &path, &[AUTH], "").status, 200);
    assert_eq!(last_key(&standin), "k1");
    // A new file is the current key's.
    let next = text_at(&upload(&proxy, "/v1/files"), "/id");
    assert_eq!(last_key(&standin), "k2");
    assert_eq!(get(&proxy, &format!("/v1/files/{next}")).status, 200);
}

#[test]
fn a_conversation_goes_on_with_the_key_of_its_stored_response() {
    for stream in [false, true] {
        let standin = StandIn::start().unwrap();
        let mut proxy = at_second_key(&standin);
        let ask = |proxy: &Proxy<'_>, before: &str| {
            let body = format!(r#"{{"input":"i","stream":{stream}{before}}}"#);
            let answer = post(proxy, RESPONSES, body);
            let text = answer.text();
            let id = text.split("\"resp_").nth(1).and_then(|rest| rest.split('"').next());
            (answer.status, id.map(|id| format!("resp_{id}")).unwrap_or_default(), answer)
        };
        let (status, first, _) = ask(&proxy, "");
        assert_eq!((status, last_key(&standin).as_str()), (200, "k2"));
        back_to_first_key(&mut proxy);
        let (_, other, _) = ask(&proxy, "");
        assert_eq!(last_key(&standin), "k1", "the first key is the current one");
        let previous = |id: &str| format!(r#","previous_response_id":"{id}""#);
        let (status, second, answer) = ask(&proxy, &previous(&first));
        assert_eq!((status, last_key(&standin).as_str()), (200, "k2"), "{answer:?}");
        // What came of it belongs to that key too, and it moved no cursor.
        for id in [&first, &second] {
            assert_eq!(text_at(&get(&proxy, &format!("{RESPONSES}/{id}")), "/id"), *id);
            assert_eq!(last_key(&standin), "k2");
        }
        assert_eq!(post(&proxy, CHAT, "{}").status, 200);
        assert_eq!(last_key(&standin), "k1");
        assert_eq!(text_at(&get(&proxy, &format!("{RESPONSES}/{other}")), "/id"), other);
        assert_eq!(last_key(&standin), "k1");

        // The key's other models may serve, another key may not.
        standin.set_quota("k2", "m1", 0);
        let (status, _, answer) = ask(&proxy, &previous(&second));
        assert_eq!((status, answer.header("x-proxy-model")), (200, Some("m2")), "{answer:?}");
        standin.set_quota("k2", "*", 0);
        for calls in [2, 0] {
            let before = standin.call_count();
            let (status, _, answer) = ask(&proxy, &previous(&second));
            assert_eq!(status, 503, "{answer:?}");
            message_on(RESPONSES, &answer);
            assert_eq!(answer.json()["error"]["code"], "free_quota_exhausted");
            // Codex would wait for it, a month too.
            assert_eq!(answer.header("retry-after"), None, "{answer:?}");
            assert_eq!(answer.header("x-should-retry"), Some("false"), "{answer:?}");
            assert_eq!(standin.call_count(), before + calls);
        }
        // To read and to delete it takes no quota.
        let path = format!("{RESPONSES}/{first}");
        assert_eq!(get(&proxy, &format!("{path}/input_items")).status, 200);
        assert_eq!(request(proxy.address(), "DELETE", &path, &[AUTH], "").status, 200);
        assert_eq!(last_key(&standin), "k2");
    }
}

#[test]
fn a_streamed_response_is_known_while_its_stream_is_open() {
    let standin = StandIn::start().unwrap();
    let mut proxy = at_second_key(&standin);
    let gate = standin.gate();
    let event = |kind: &str| {
        format!(
            "id:1\nevent:{kind}\n:HTTP_STATUS/200\ndata:{{\"type\":\"{kind}\",\"response\":{{\"id\":\"resp_open\"}}}}\n\n"
        )
    };
    let parts = vec![event("response.created"), event("response.completed")];
    standin.reply("k2", "m1", Reply::gated_sse(&gate, parts, End::Clean));
    let mut client = proxy.connect();
    client.send("POST", RESPONSES, &[AUTH], br#"{"stream":true}"#);
    gate.release();
    assert_eq!(client.read_head().unwrap().status, 200);
    assert!(client.read_chunk().unwrap().is_some());
    assert_eq!(pins(&proxy.state()), [("resp_open".to_owned(), key_hash("k2"))]);
    gate.open();
    client.read_body().unwrap();
    back_to_first_key(&mut proxy);
    assert_eq!(get(&proxy, "/v1/responses/resp_open").status, 404);
    assert_eq!(last_key(&standin), "k2");
}

#[test]
fn a_request_that_names_a_file_by_url_goes_to_the_files_key() {
    let standin = StandIn::start().unwrap();
    let mut proxy = at_second_key(&standin);
    let policy = get(&proxy, "/api/v1/uploads?action=getPolicy&model=qwen-vl-plus");
    let folder = text_at(&policy, "/data/upload_dir");
    let form = [AUTH, ("content-type", "multipart/form-data; boundary=B")];
    let file = text_at(&request(proxy.address(), "POST", "/v1/files", &form, "--B--\r\n"), "/id");
    assert_eq!(last_key(&standin), "k2");
    back_to_first_key(&mut proxy);
    standin.reply("*", "*", Reply::json(200, "{}"));
    let native = "/api/v1/services/aigc/multimodal-generation/generation";
    for (path, model, content) in [
        (native, "qwen-vl-plus", format!("oss://{folder}/cat.png")),
        (native, "m1", format!("oss://{folder}/the cat 猫.png")),
        (CHAT, "m1", format!("oss://{folder}/cat.png")),
        (CHAT, "m1", format!("fileid://{file}")),
        (CHAT, "m1", format!("fileid://{file},fileid://{file}")),
    ] {
        let body = format!(r#"{{"model":"{model}","messages":[{{"content":"{content}"}}]}}"#);
        assert_eq!(post(&proxy, path, body).status, 200, "{path} {content}");
        assert_eq!(standin.slots().last().unwrap(), &format!("k2/{model}"), "{path} {content}");
    }
    assert_eq!(post(&proxy, CHAT, r#"{"messages":[{"content":"no url"}]}"#).status, 200);
    assert_eq!(last_key(&standin), "k1");

    // One that only mentions such a URL, as source code does, is as free as any.
    standin.reply("k1", "*", exhausted());
    let body = r#"{"messages":[{"content":"fetch(\"oss://bucket/a.png\")"}]}"#;
    assert_eq!(post(&proxy, CHAT, body).status, 200);
    assert_eq!(last_key(&standin), "k2");
}

#[test]
fn what_is_not_stored_and_what_has_no_alternative_is_not_remembered() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    assert_eq!(post(&proxy, RESPONSES, r#"{"store":false}"#).status, 200);
    assert_eq!(post(&proxy, RESPONSES, r#"{"store":false,"stream":true}"#).status, 200);
    assert_eq!(post(&proxy, CHAT, "{}").status, 200);
    standin.reply("*", "*", Reply::json(400, r#"{"id":"resp_failed"}"#));
    assert_eq!(post(&proxy, RESPONSES, "{}").status, 400);
    assert_eq!(pins(&proxy.final_state()), []);

    standin.clear();
    let proxy = Proxy::builder(&standin).keys("k1").start();
    let task = submit(&proxy);
    assert_eq!(post(&proxy, RESPONSES, "{}").status, 200);
    assert_eq!(poll(&proxy, &task), "SUCCEEDED");
    assert_eq!(pins(&proxy.final_state()), []);
}

#[test]
fn an_identifier_of_a_key_that_is_gone_goes_to_the_current_one() {
    let standin = StandIn::start().unwrap();
    let mut proxy = Proxy::start(&standin);
    let task = submit(&proxy);
    proxy.set_env("DASHSCOPE_API_KEYS", "k2,k3");
    proxy.restart();
    assert_eq!((poll(&proxy, &task), last_key(&standin)), ("UNKNOWN".into(), "k2".into()));
    // It comes back with its key.
    proxy.set_env("DASHSCOPE_API_KEYS", "k2,k1");
    proxy.restart();
    assert_eq!((poll(&proxy, &task), last_key(&standin)), ("SUCCEEDED".into(), "k1".into()));
}
