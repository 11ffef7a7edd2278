//! The request body: read once, and changed where it must be.
//!
//! Only the bytes of the top-level `model` value change, and the digits of an upper bound that is
//! lowered for a model (design section 11). Re-serialising would turn integers above 2^53 into
//! other numbers, reorder keys (and so lose upstream's prompt cache) and let escapes grow.

use std::fmt;
use std::io::{self, Read};
use std::ops::Range;

use memchr::memchr;

use super::ids;
use super::limits::Lowered;
use super::members::{Member, members};

/// Why a body is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BodyError {
    /// It is no JSON, or JSON that is no object; and where that shows.
    NotAnObject(String),
    /// Two top-level `model`s: readers would disagree on which one counts.
    RepeatedModel,
}

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAnObject(why) => write!(f, "the request body is not a JSON object: {why}"),
            Self::RepeatedModel => f.write_str("the request body has more than one `model`"),
        }
    }
}

/// The bytes without the mark of UTF-8 that some editors and libraries put before them. It says
/// nothing, and no JSON parser has to take it (RFC 8259, section 8.1).
#[must_use]
pub(crate) fn without_mark(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes)
}

/// A body that has been looked through.
#[derive(Debug)]
pub(crate) struct RequestBody<'a> {
    bytes: &'a [u8],
    /// Where the `model` value stands, or where one goes in.
    place: Place,
    is_stream: bool,
    is_stored: bool,
    refers_to: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Replace(Range<usize>),
    /// Right behind the opening brace; with a comma unless the object is empty.
    Insert {
        at: usize,
        comma: bool,
    },
}

impl Place {
    /// The place before the first of so many members.
    fn first_of(bytes: &[u8], count: usize) -> Self {
        let brace = memchr(b'{', bytes).expect("an object that was read has a brace");
        Self::Insert { at: brace + 1, comma: count > 0 }
    }
}

impl<'a> RequestBody<'a> {
    /// Looks through a body.
    ///
    /// # Errors
    /// When it is not a JSON object, or has two top-level `model`s.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, BodyError> {
        let bytes = without_mark(bytes);
        let (mut model, mut count) = (None, 0);
        let place = Place::Insert { at: 0, comma: false };
        let mut body = Self { bytes, place, is_stream: false, is_stored: true, refers_to: None };
        for member in members(bytes) {
            let Member { name, value } =
                member.map_err(|error| BodyError::NotAnObject(error.to_string()))?;
            count += 1;
            let text = &bytes[value.clone()];
            match name.as_bytes() {
                b"model" if model.is_some() => return Err(BodyError::RepeatedModel),
                b"model" => model = Some(value),
                b"stream" => body.is_stream = text == b"true",
                b"store" => body.is_stored = text != b"false",
                b"previous_response_id" | b"input_file_id" => {
                    body.refers_to = serde_json::from_slice(text).ok();
                }
                _ => {}
            }
        }
        body.place = model.map_or_else(|| Place::first_of(bytes, count), Place::Replace);
        Ok(body)
    }

    /// Whether the client asked for a stream.
    #[must_use]
    pub(crate) fn is_stream(&self) -> bool {
        self.is_stream
    }

    /// Whether upstream may store the answer: the client has not switched that off.
    #[must_use]
    pub(crate) fn is_stored(&self) -> bool {
        self.is_stored
    }

    /// The identifier of something made before that the request goes on from.
    #[must_use]
    pub(crate) fn refers_to(&self) -> Option<String> {
        self.refers_to.clone()
    }

    /// The files that it names by URL, as [`ids::files_named_in`].
    #[must_use]
    pub(crate) fn names_files(&self) -> Vec<String> {
        ids::files_named_in(self.bytes)
    }

    /// The model that the client named, if it is a text.
    #[must_use]
    pub(crate) fn model(&self) -> Option<String> {
        match &self.place {
            Place::Replace(span) => serde_json::from_slice(&self.bytes[span.clone()]).ok(),
            Place::Insert { .. } => None,
        }
    }

    /// All its bytes, as the client sent them.
    #[must_use]
    pub(crate) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The body as the client sent it.
    #[must_use]
    pub(crate) fn as_sent(&self) -> Edited<'a> {
        Edited::new(self.bytes, Vec::new())
    }

    /// The body with `model` in it, and with these upper bounds lowered; everything else to the
    /// byte as the client sent it.
    #[must_use]
    pub(crate) fn with_model(&self, model: &str, lowered: &[Lowered]) -> Edited<'a> {
        let value = serde_json::Value::from(model).to_string();
        let model = match &self.place {
            Place::Replace(span) => (span.clone(), value),
            Place::Insert { at, comma } => {
                let comma = if *comma { "," } else { "" };
                (*at..*at, format!("\"model\":{value}{comma}"))
            }
        };
        let lowered = lowered.iter().map(|it| (it.span.clone(), it.value.to_string()));
        Edited::new(self.bytes, lowered.chain([model]).collect())
    }
}

/// A body with some of its bytes replaced: no copy, because bodies may be large.
#[derive(Debug)]
pub(crate) struct Edited<'a> {
    /// What was sent before each patch, and the patch.
    parts: Vec<(&'a [u8], String)>,
    /// What was sent behind the last one.
    rest: &'a [u8],
}

impl<'a> Edited<'a> {
    fn new(bytes: &'a [u8], mut patches: Vec<(Range<usize>, String)>) -> Self {
        patches.sort_by_key(|(span, _)| span.start);
        let (mut parts, mut done) = (Vec::with_capacity(patches.len()), 0);
        for (span, patch) in patches {
            parts.push((&bytes[done..span.start], patch));
            done = span.end;
        }
        Self { parts, rest: &bytes[done..] }
    }

    /// How long it is, in bytes.
    #[must_use]
    pub(crate) fn len(&self) -> usize {
        let parts = self.parts.iter().map(|(sent, patch)| sent.len() + patch.len());
        parts.sum::<usize>() + self.rest.len()
    }

    /// All its bytes, in order.
    #[must_use]
    pub(crate) fn reader(&self) -> impl Read {
        let parts = self.parts.iter().flat_map(|(sent, patch)| [*sent, patch.as_bytes()]);
        Parts(parts.chain([self.rest]).collect())
    }
}

/// Reads one after the other, and fills the buffer: each read becomes a write to upstream.
struct Parts<'a>(Vec<&'a [u8]>);

impl Read for Parts<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut count = 0;
        for part in &mut self.0 {
            count += part.read(&mut buffer[count..])?;
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> RequestBody<'_> {
        RequestBody::parse(text.as_bytes()).unwrap()
    }

    fn written(edited: &Edited<'_>) -> String {
        let mut text = String::new();
        edited.reader().read_to_string(&mut text).unwrap();
        assert_eq!(text.len(), edited.len());
        text
    }

    fn edited(text: &str) -> String {
        written(&parse(text).with_model("qwen-plus", &[]))
    }

    #[test]
    fn only_the_model_value_changes() {
        let pairs = [
            (r#"{"model":"x"}"#, r#"{"model":"qwen-plus"}"#),
            (
                r#"{"seed":9007199254740993,"model":"x","t":1.0e0}"#,
                r#"{"seed":9007199254740993,"model":"qwen-plus","t":1.0e0}"#,
            ),
            (
                " {\n\t\"model\"  :  \"x\"  ,\r\n \"b\" : [ 1 , 2 ] } \n",
                " {\n\t\"model\"  :  \"qwen-plus\"  ,\r\n \"b\" : [ 1 , 2 ] } \n",
            ),
            (
                r#"{"tools":[{"model":"a","x":{"model":"b"}}],"text":"\"model\":\"c\"","model":"x"}"#,
                r#"{"tools":[{"model":"a","x":{"model":"b"}}],"text":"\"model\":\"c\"","model":"qwen-plus"}"#,
            ),
            (
                r#"{"a":"\u00e9\/\ud83d\ude00 é","model":"\u0078","z":0}"#,
                r#"{"a":"\u00e9\/\ud83d\ude00 é","model":"qwen-plus","z":0}"#,
            ),
            (r#"{"mod\u0065l":"x"}"#, r#"{"mod\u0065l":"qwen-plus"}"#),
            (r#"{"model":null}"#, r#"{"model":"qwen-plus"}"#),
            (r#"{"model":{"a":[1]},"b":2}"#, r#"{"model":"qwen-plus","b":2}"#),
        ];
        for (before, after) in pairs {
            assert_eq!(edited(before), after);
        }
    }

    #[test]
    fn a_missing_model_goes_in_first() {
        assert_eq!(edited("{}"), r#"{"model":"qwen-plus"}"#);
        assert_eq!(edited(" { } "), " {\"model\":\"qwen-plus\" } ");
        assert_eq!(edited(r#"{"a":1}"#), r#"{"model":"qwen-plus","a":1}"#);
        assert_eq!(edited(r#"{ "MODEL":1}"#), r#"{"model":"qwen-plus", "MODEL":1}"#);
    }

    #[test]
    fn a_model_id_is_written_as_json() {
        let body = parse("{}");
        assert_eq!(written(&body.with_model(r#"a"b\c"#, &[])), r#"{"model":"a\"b\\c"}"#);
    }

    #[test]
    fn lowered_bounds_are_replaced_where_they_stand_before_and_behind_the_model() {
        let text = r#"{"max_tokens" : 64000, "model":"x", "n":1,"thinking_budget":32000 }"#;
        let span = |digits: &str| {
            let at = text.find(digits).unwrap();
            at..at + digits.len()
        };
        let lowered = |name, span, value| Lowered { name, span, value };
        let budget = lowered("thinking_budget", span("32000"), 4096);
        let edits = [budget, lowered("max_tokens", span("64000"), 8192)];
        assert_eq!(
            written(&parse(text).with_model("qwen-max", &edits)),
            r#"{"max_tokens" : 8192, "model":"qwen-max", "n":1,"thinking_budget":4096 }"#
        );
        let body = parse(r#"{"max_tokens":64000}"#);
        assert_eq!(
            written(&body.with_model("m", &[lowered("max_tokens", 14..19, 7)])),
            r#"{"model":"m","max_tokens":7}"#
        );
    }

    #[test]
    fn two_models_are_refused_even_when_one_is_escaped() {
        for text in [r#"{"model":"a","model":"a"}"#, r#"{"model":"a","x":1,"\u006dodel":"b"}"#] {
            let error = RequestBody::parse(text.as_bytes()).unwrap_err();
            assert_eq!(error, BodyError::RepeatedModel);
        }
    }

    #[test]
    fn what_is_no_json_object_is_refused() {
        for bytes in [
            &b""[..],
            b"null",
            b"[]",
            b"\"model\"",
            b"{",
            b"{\"model\":\"x\"",
            b"{\"model\":\"x\"} {}",
            b"{\"model\":\"x\",}",
            b"{'model':'x'}",
            b"\x28\xb5\x2f\xfd",
        ] {
            let error = RequestBody::parse(bytes).unwrap_err();
            assert!(matches!(error, BodyError::NotAnObject(_)), "{bytes:?}");
        }
    }

    #[test]
    fn the_client_asks_for_a_stream_with_true() {
        assert!(parse(r#"{"stream":true}"#).is_stream());
        assert!(parse(r#"{"stream" : true , "model":"x"}"#).is_stream());
        for text in
            ["{}", r#"{"stream":false}"#, r#"{"stream":"true"}"#, r#"{"a":{"stream":true}}"#]
        {
            assert!(!parse(text).is_stream(), "{text}");
        }
    }

    #[test]
    fn what_a_request_goes_on_from_is_known() {
        let refers_to = |text: &str| parse(text).refers_to();
        assert_eq!(refers_to(r#"{"previous_response_id":"resp_1"}"#).as_deref(), Some("resp_1"));
        assert_eq!(refers_to(r#"{"input_file_id":"file-1"}"#).as_deref(), Some("file-1"));
        assert_eq!(refers_to(r#"{"input":"oss://dir/cat.png"}"#), None);
        assert_eq!(parse(r#"{"input":"oss://dir/cat.png"}"#).names_files(), ["dir"]);
        assert_eq!(refers_to(r#"{"previous_response_id":null}"#), None);
        assert!(parse("{}").is_stored() && parse(r#"{"store":true}"#).is_stored());
        assert!(!parse(r#"{"store":false}"#).is_stored());
    }

    #[test]
    fn the_clients_model_is_known_if_it_is_a_text() {
        assert_eq!(parse(r#"{"model":"\u0078y"}"#).model().as_deref(), Some("xy"));
        assert_eq!(parse(r#"{"model":7}"#).model(), None);
        assert_eq!(parse("{}").model(), None);
    }

    #[test]
    fn deep_nesting_neither_fails_nor_overflows() {
        let deep =
            format!("{{\"a\":{}{},\"model\":\"x\"}}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(edited(&deep).ends_with(r#""model":"qwen-plus"}"#));
    }
}
