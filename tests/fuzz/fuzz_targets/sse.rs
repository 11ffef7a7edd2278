//! The first event of a stream, against a second reader that takes it byte by byte (WHATWG HTML,
//! section 9.2.6). Every prefix has the event of the whole, or none yet.

#![no_main]

use dashscope_proxy::fuzzing::{first_event, first_payload};
use libfuzzer_sys::fuzz_target;

/// The reader of a stream. It knows the first event as soon as its blank line has begun.
#[derive(Default)]
struct Reader {
    line: Vec<u8>,
    after_cr: bool,
    data: Option<Vec<u8>>,
    event: Vec<u8>,
    first: Option<Vec<u8>>,
}

impl Reader {
    fn take(&mut self, byte: u8) {
        let after_cr = std::mem::replace(&mut self.after_cr, byte == b'\r');
        match byte {
            b'\n' if after_cr => {}
            b'\n' | b'\r' => self.end_line(),
            _ => self.line.push(byte),
        }
    }

    fn end_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        if line.is_empty() {
            let data = self.data.take();
            let event = std::mem::take(&mut self.event);
            if self.first.is_none() && event != b"ping" {
                self.first = data;
            }
            return;
        }
        let mut parts = line.splitn(2, |byte| *byte == b':');
        let name = parts.next().unwrap_or_default();
        let value = parts.next().unwrap_or_default();
        let value = if value.first() == Some(&b' ') { &value[1..] } else { value };
        if name == b"data" {
            let mut data =
                self.data.take().map_or_else(Vec::new, |data| [&data[..], b"\n"].concat());
            data.extend_from_slice(value);
            self.data = Some(data);
        } else if name == b"event" {
            self.event = value.to_vec();
        }
    }
}

/// The first event, and how many bytes it takes to know it.
fn expected(bytes: &[u8]) -> Option<(usize, Vec<u8>)> {
    let skipped = if bytes.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 };
    let mut reader = Reader::default();
    for (at, byte) in bytes.iter().enumerate().skip(skipped) {
        reader.take(*byte);
        if let Some(first) = reader.first {
            return Some((at + 1, first));
        }
    }
    None
}

fuzz_target!(|bytes: &[u8]| {
    let expected = expected(bytes);
    let at = |end: usize| match &expected {
        Some((known, first)) if *known <= end => Some(first),
        _ => None,
    };
    // Every prefix of a short stream; of a long one some, and those around its first event.
    let turn = expected.as_ref().map_or(0, |(known, _)| *known);
    let step = (bytes.len() / 64).max(1);
    let around = turn.saturating_sub(1)..=turn.saturating_add(2).min(bytes.len());
    for end in (0..=bytes.len()).step_by(step).chain(around).chain([bytes.len()]) {
        assert_eq!(first_event(&bytes[..end]).as_ref(), at(end), "a prefix of {end} bytes");
    }
    let whole = first_event(bytes);
    let finished = first_payload(bytes);
    assert!(whole.is_none() || whole == finished);
    assert_eq!(finished, first_event(&[bytes, b"\n\n"].concat()));
});
