//! Server-sent events, as far as the proxy has to understand them: the first event of a stream.
//!
//! Lines end with LF, CRLF or CR; a blank line ends an event; `data:` may be followed by one
//! blank (WHATWG HTML, section 9.2.6). DashScope's native and Anthropic streams leave that blank
//! out, and native frames carry a comment line `:HTTP_STATUS/200`.

/// The payload (`data:` lines joined by a newline) of the first complete event in `bytes`.
///
/// Comments, events without data and pings are keep-alives: they are passed over, because an
/// error may still follow them.
#[must_use]
pub(crate) fn first_event(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut rest = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    while let Some((event, after)) = split_event(rest) {
        if let Some(data) = payload(event) {
            return Some(data);
        }
        rest = after;
    }
    None
}

/// The payload of the first event of a finished body, where the last blank line may be missing.
#[must_use]
pub(crate) fn first_payload(body: &[u8]) -> Option<Vec<u8>> {
    first_event(body).or_else(|| first_event(&[body, b"\n\n"].concat()))
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
    let end = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r'))?;
    let crlf = rest[end..].starts_with(b"\r\n");
    let next = start + end + if crlf { 2 } else { 1 };
    Some(Line { text: &rest[..end], next })
}

fn payload(event: &[u8]) -> Option<Vec<u8>> {
    let mut data: Option<Vec<u8>> = None;
    let mut is_ping = false;
    let mut start = 0;
    while let Some(line) = line_at(event, start) {
        start = line.next;
        match field(line.text) {
            (b"data", value) => match &mut data {
                Some(data) => {
                    data.push(b'\n');
                    data.extend_from_slice(value);
                }
                None => data = Some(value.to_vec()),
            },
            (b"event", name) => is_ping = name == b"ping",
            _ => {}
        }
    }
    data.filter(|_| !is_ping)
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
