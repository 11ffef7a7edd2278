//! Identifiers that belong to the key that made them: tasks, files, batches, stored responses,
//! upload folders. With another key they do not exist (a task even answers 200 `UNKNOWN`).

use serde_json::Value;

use super::route::{Base, Endpoint, Rule};

/// How far an identifier may go on, in characters.
const LONGEST: usize = 200;

/// URLs in a request that name a file of the account, and how many of each are looked at.
const OSS: &[u8] = b"oss://";
const FILE_ID: &[u8] = b"fileid://";
const MOST_NAMED: usize = 32;

/// Which identifiers an answer may make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Makes {
    /// None that matter.
    Nothing,
    /// `output.task_id`, of an asynchronous call.
    Task,
    /// `id`, of a file, a batch or a stored response.
    Id,
    /// `data.uploaded_files[].file_id`, or `data.upload_dir` of an upload policy.
    Upload,
}

/// Which identifiers the answers of an endpoint make. `stores`: the client has not switched
/// storing off.
#[must_use]
pub(crate) fn made_by(endpoint: &Endpoint, stores: bool) -> Makes {
    match (endpoint.base, endpoint.path.as_str(), &endpoint.rule) {
        (Base::OpenAi, "/responses", Rule::Pool) if stores => Makes::Id,
        (Base::OpenAi, "/files" | "/batches", _) => Makes::Id,
        (Base::Native, "/files" | "/uploads", _) => Makes::Upload,
        (Base::Native, path, Rule::PoolIfNamed) if path.starts_with("/services/") => Makes::Task,
        _ => Makes::Nothing,
    }
}

/// The identifiers in an answer, or in an event of one.
#[must_use]
pub(crate) fn found_in(makes: Makes, json: &[u8]) -> Vec<String> {
    let Ok(answer) = serde_json::from_slice::<Value>(json) else { return Vec::new() };
    let found: Vec<&Value> = match makes {
        Makes::Nothing => Vec::new(),
        Makes::Task => answer.pointer("/output/task_id").into_iter().collect(),
        // `response.id`: the events of a streamed response.
        Makes::Id => answer.pointer("/response/id").or(answer.get("id")).into_iter().collect(),
        Makes::Upload => {
            let files = answer.pointer("/data/uploaded_files").and_then(Value::as_array);
            let files = files.into_iter().flatten().filter_map(|file| file.get("file_id"));
            files.chain(answer.pointer("/data/upload_dir")).collect()
        }
    };
    found.into_iter().filter_map(Value::as_str).filter(|id| is_id(id)).map(str::to_owned).collect()
}

/// The files of an account that a request's body names by URL: folders of uploads, and files'
/// identifiers. A prompt may mention such URLs too, so no more than [`MOST_NAMED`] of a kind.
#[must_use]
pub(crate) fn files_named_in(body: &[u8]) -> Vec<String> {
    let named = |scheme: &'static [u8]| {
        let places = memchr::memmem::find_iter(body, scheme).take(MOST_NAMED);
        places.filter_map(move |at| file_at(&body[at + scheme.len()..], scheme == OSS))
    };
    named(OSS).chain(named(FILE_ID)).collect()
}

/// The identifier that a URL begins with, behind its scheme.
fn file_at(url: &[u8], is_folder: bool) -> Option<String> {
    let end = |byte: &u8| !(byte.is_ascii_alphanumeric() || b"-_./".contains(byte));
    let url =
        &url[..url.iter().take(LONGEST * 2).position(end).unwrap_or(url.len().min(LONGEST * 2))];
    let url = std::str::from_utf8(url).ok()?;
    let name = if is_folder { url.rsplit_once('/').map_or(url, |(dir, _)| dir) } else { url };
    is_id(name).then(|| name.to_owned())
}

/// Whether `text` is worth remembering as an identifier.
fn is_id(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_graphic() && byte != b'"';
    (1..=LONGEST).contains(&text.len()) && text.bytes().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::route::{Route, resolve};

    fn made(method: &str, path: &str, stores: bool) -> Makes {
        match resolve(method, path) {
            Route::Upstream(endpoint) => made_by(&endpoint, stores),
            other => panic!("{path}: {other:?}"),
        }
    }

    #[test]
    fn what_an_endpoint_makes() {
        assert_eq!(made("POST", "/v1/responses", true), Makes::Id);
        assert_eq!(made("POST", "/v1/responses", false), Makes::Nothing);
        assert_eq!(made("POST", "/v1/files", true), Makes::Id);
        assert_eq!(made("POST", "/v1/batches", true), Makes::Id);
        assert_eq!(made("POST", "/v1/chat/completions", true), Makes::Nothing);
        assert_eq!(made("POST", "/api/v1/services/aigc/x/y", true), Makes::Task);
        assert_eq!(made("POST", "/api/v1/files", true), Makes::Upload);
        assert_eq!(made("GET", "/api/v1/uploads", true), Makes::Upload);
        assert_eq!(made("GET", "/api/v1/tasks/t", true), Makes::Nothing);
    }

    #[test]
    fn identifiers_are_found_where_each_answer_has_them() {
        let found = |makes, json: &str| found_in(makes, json.as_bytes());
        assert_eq!(found(Makes::Task, r#"{"output":{"task_id":"t-1"},"request_id":"r"}"#), ["t-1"]);
        assert_eq!(found(Makes::Id, r#"{"object":"file","id":"file-fe-1"}"#), ["file-fe-1"]);
        assert_eq!(
            found(Makes::Id, r#"{"type":"response.created","response":{"id":"resp_1"}}"#),
            ["resp_1"]
        );
        let files = r#"{"data":{"uploaded_files":[{"file_id":"a"},{"file_id":"b"}]}}"#;
        assert_eq!(found(Makes::Upload, files), ["a", "b"]);
        assert_eq!(found(Makes::Upload, r#"{"data":{"upload_dir":"dir/x"}}"#), ["dir/x"]);
        for nothing in ["", "[]", "{}", r#"{"id":7}"#, r#"{"id":"a b"}"#, r#"{"id":""}"#] {
            assert!(found(Makes::Id, nothing).is_empty(), "{nothing}");
        }
    }

    #[test]
    fn files_are_named_by_url() {
        let named = |body: &str| files_named_in(body.as_bytes());
        let body = r#"{"image":"oss://dashscope-instant/ab/2026-01-01/x/cat.png"}"#;
        assert_eq!(named(body), ["dashscope-instant/ab/2026-01-01/x"]);
        let body = r#"{"content":"fileid://file-fe-xy,fileid://file-fe-z","image":"oss://d/x"}"#;
        assert_eq!(named(body), ["d", "file-fe-xy", "file-fe-z"]);
        assert_eq!(named(r#"{"image":"https://x/y"}"#), [""; 0]);
        assert_eq!(named("oss://"), [""; 0]);
        assert_eq!(named(&"oss://d/x ".repeat(1_000)).len(), MOST_NAMED);
        assert_eq!(named(&format!("oss://{}", "d".repeat(1_000))), [""; 0]);
    }
}
