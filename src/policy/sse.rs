//! Server-sent events, as far as the proxy has to understand them.
//!
//! Lines end with LF, CRLF or CR; a blank line ends an event; `data:` may be followed by one
//! blank (WHATWG HTML, section 9.2.6). DashScope's native and Anthropic streams leave that blank
//! out, and native frames carry a comment line `:HTTP_STATUS/200`.

/// How DashScope's native frames tell the status that an answer would have had.
const STATUS_COMMENT: &[u8] = b"HTTP_STATUS/";

/// An event with data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Event {
    /// What its last `event:` line names it; empty without one.
    pub name: Vec<u8>,
    /// The status of its `:HTTP_STATUS/NNN` comment.
    pub status: Option<u16>,
    /// Its `data:` lines, joined by a newline.
    pub data: Vec<u8>,
}

/// The lines of each complete event, in their order, whether they hold data or not.
#[derive(Clone, Debug)]
pub(crate) struct Blocks<'a> {
    rest: &'a [u8],
}

impl<'a> Blocks<'a> {
    /// The events of any part of a stream that begins with one.
    #[must_use]
    pub(crate) fn of(part: &'a [u8]) -> Self {
        Self { rest: part }
    }

    /// The bytes behind the last event that was given: nothing, or the beginning of one.
    #[must_use]
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }
}

impl<'a> Iterator for Blocks<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let (event, after) = split_event(self.rest)?;
        self.rest = after;
        Some(event)
    }
}

/// The complete events with data from the first byte of a stream on. What has no data is a
/// keep-alive.
pub(crate) fn events(stream: &[u8]) -> impl Iterator<Item = Event> {
    Blocks::of(stream.strip_prefix(b"\xef\xbb\xbf").unwrap_or(stream)).filter_map(read)
}

/// The payload of the first complete event in `bytes` that is neither a keep-alive nor a ping.
#[cfg(any(test, fuzzing))]
#[must_use]
pub(crate) fn first_event(bytes: &[u8]) -> Option<Vec<u8>> {
    events(bytes).find(|event| event.name != b"ping").map(|event| event.data)
}

/// The payload of the first event of a finished body, where the last blank line may be missing.
#[cfg(any(test, fuzzing))]
#[must_use]
pub(crate) fn first_payload(body: &[u8]) -> Option<Vec<u8>> {
    first_event(body).or_else(|| first_event(&[body, b"\n\n"].concat()))
}

/// What stands behind each `data:` that begins a line, to the end of the body: JSON that goes on
/// over several lines is found as well as one with `[DONE]` in the line below.
pub(crate) fn data_lines(body: &[u8]) -> impl Iterator<Item = &[u8]> {
    let starts = memchr::memmem::find_iter(body, b"data:");
    let starts = starts.filter(|&at| at == 0 || matches!(body[at - 1], b'\n' | b'\r'));
    starts.map(|at| &body[at + b"data:".len()..])
}

/// The lines of the first complete event, and what follows it.
fn split_event(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut start = 0;
    while let Some(line) = line_at(bytes, start) {
        if line.text.is_empty() {
            return Some((&bytes[..start], &bytes[line.next..]));
        }
        start = line.next;
    }
    None
}

struct Line<'a> {
    text: &'a [u8],
    next: usize,
}

/// The complete line that begins at `start`.
fn line_at(bytes: &[u8], start: usize) -> Option<Line<'_>> {
    let rest = &bytes[start..];
    let end = memchr::memchr2(b'\n', b'\r', rest)?;
    let crlf = rest[end..].starts_with(b"\r\n");
    let next = start + end + if crlf { 2 } else { 1 };
    Some(Line { text: &rest[..end], next })
}

/// The event that these lines are, if it has data.
#[must_use]
pub(crate) fn read(lines: &[u8]) -> Option<Event> {
    let mut event = Event::default();
    let mut has_data = false;
    let mut start = 0;
    while let Some(line) = line_at(lines, start) {
        start = line.next;
        match field(line.text) {
            (b"data", value) => {
                if std::mem::replace(&mut has_data, true) {
                    event.data.push(b'\n');
                }
                event.data.extend_from_slice(value);
            }
            (b"event", name) => event.name = name.to_vec(),
            (b"", comment) => event.status = status(comment).or(event.status),
            _ => {}
        }
    }
    has_data.then_some(event)
}

fn status(comment: &[u8]) -> Option<u16> {
    let digits = comment.strip_prefix(STATUS_COMMENT)?.trim_ascii_end();
    std::str::from_utf8(digits).ok()?.parse().ok()
}

fn field(line: &[u8]) -> (&[u8], &[u8]) {
    match line.iter().position(|&byte| byte == b':') {
        Some(colon) => {
            let value = &line[colon + 1..];
            (&line[..colon], value.strip_prefix(b" ").unwrap_or(value))
        }
        None => (line, b""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(text: &str) -> Option<String> {
        first_event(text.as_bytes()).map(|data| String::from_utf8(data).unwrap())
    }

    #[test]
    fn an_event_is_complete_with_its_blank_line() {
        assert_eq!(first("data: {\"a\":1}\n"), None);
        assert_eq!(first("data: {\"a\":1}\n\n").as_deref(), Some("{\"a\":1}"));
        assert_eq!(first("data:{\"a\":1}\r\n\r\n").as_deref(), Some("{\"a\":1}"));
        assert_eq!(first("data:x\r\rdata:y\r\r").as_deref(), Some("x"));
    }

    #[test]
    fn the_native_frame_is_understood() {
        let frame = "id:1\nevent:error\n:HTTP_STATUS/403\ndata:{\"code\":\"X\"}\n\n";
        assert_eq!(first(frame).as_deref(), Some("{\"code\":\"X\"}"));
    }

    #[test]
    fn keep_alives_are_passed_over() {
        assert_eq!(first(": hello\n\n"), None);
        assert_eq!(first(": hello\n\nid:7\n\ndata: x\n\n").as_deref(), Some("x"));
        assert_eq!(first("event:ping\ndata:{\"type\":\"ping\"}\n\n"), None);
        assert_eq!(first("event:ping\ndata:{}\n\ndata:x\n\n").as_deref(), Some("x"));
    }

    #[test]
    fn of_two_names_of_an_event_the_last_counts() {
        assert_eq!(first("event:ping\nevent:error\ndata:x\n\n").as_deref(), Some("x"));
        assert_eq!(first("event:error\nevent:ping\ndata:x\n\n"), None);
    }

    #[test]
    fn the_native_frame_tells_its_status_and_its_name() {
        let read = |text: &str| events(text.as_bytes()).next().unwrap();
        let frame = read("id:1\r\nevent:error\r\n:HTTP_STATUS/429\r\ndata: {}\r\n\r\n");
        assert_eq!((frame.name.as_slice(), frame.status), (b"error".as_slice(), Some(429)));
        assert_eq!(read(": HTTP_STATUS/400 \ndata:x\n\n").status, Some(400));
        for none in ["", ":HTTP_STATUS/\n", ":HTTP_STATUS/x\n", ":hello\n"] {
            assert_eq!(read(&format!("{none}data:x\n\n")).status, None, "{none}");
        }
    }

    #[test]
    fn what_follows_the_last_complete_event_is_its_rest() {
        let mut blocks = Blocks::of(b"data:1\n\n:c\n\ndata:2\n\ndata:3\n");
        let payloads: Vec<Vec<u8>> =
            blocks.by_ref().filter_map(read).map(|event| event.data).collect();
        assert_eq!(payloads, [b"1", b"2"]);
        assert_eq!(blocks.rest(), b"data:3\n");
    }

    #[test]
    fn data_lines_are_found_at_the_start_of_a_line_only() {
        let found: Vec<&[u8]> = data_lines(b"data:a data:b\r\ndata: c").collect();
        assert_eq!(found, [b"a data:b\r\ndata: c".as_slice(), b" c"]);
    }

    #[test]
    fn several_data_lines_are_one_payload() {
        assert_eq!(first("data: a\ndata:\ndata:  b\n\n").as_deref(), Some("a\n\n b"));
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_the_first_line() {
        assert_eq!(first("\u{feff}data:x\n\n").as_deref(), Some("x"));
    }

    #[test]
    fn a_finished_body_needs_no_last_blank_line() {
        assert_eq!(first_payload(b"data: x").as_deref(), Some(b"x".as_slice()));
        assert_eq!(first_payload(b"data: x\n").as_deref(), Some(b"x".as_slice()));
        assert_eq!(first_payload(b"{\"a\":1}"), None);
    }

    #[test]
    fn every_split_of_a_stream_gives_the_same_first_event() {
        let stream = ":c\r\n\r\nid:1\r\ndata:{\"t\":\"\u{4f60}\"}\r\n\r\ndata:2\r\n\r\n".as_bytes();
        let complete = stream.windows(4).rposition(|w| w == b"\r\n\r\n").unwrap();
        for end in 0..=stream.len() {
            if let Some(data) = first_event(&stream[..end]) {
                assert_eq!(data, "{\"t\":\"\u{4f60}\"}".as_bytes());
                assert!(end < complete || end > 10);
            }
        }
    }
}
