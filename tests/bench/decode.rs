//! An answer as it comes off the wire, in pieces of any size.

use httparse::Status;

/// How far one answer has come.
#[derive(Debug)]
pub(crate) struct Decoder(Stage);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Head,
    /// This much of a body with a length is missing.
    Body(usize),
    ChunkSize,
    /// This much of a chunk is missing.
    Chunk(usize),
    /// After a chunk, and (no trailers here) after the last one.
    LineEnd {
        last: bool,
    },
    Done,
}

impl Decoder {
    pub(crate) fn new() -> Self {
        Self(Stage::Head)
    }

    pub(crate) fn is_done(&self) -> bool {
        self.0 == Stage::Done
    }

    /// Takes from `bytes` what it can, gives the parts of the body to `on_body`, and tells how
    /// many bytes it took: all of them unless something is cut at the end or the answer is over.
    pub(crate) fn take(
        &mut self,
        bytes: &[u8],
        mut on_body: impl FnMut(&[u8]),
    ) -> Result<usize, String> {
        let mut taken = 0;
        loop {
            let unread = &bytes[taken..];
            let (length, next) = match self.0 {
                Stage::Head => match read_head(unread)? {
                    Some(found) => found,
                    None => return Ok(taken),
                },
                Stage::ChunkSize => match httparse::parse_chunk_size(unread) {
                    Ok(Status::Complete((length, 0))) => (length, Stage::LineEnd { last: true }),
                    Ok(Status::Complete((length, size))) => {
                        let size = usize::try_from(size).map_err(|_| "a chunk is too large")?;
                        (length, Stage::Chunk(size))
                    }
                    Ok(Status::Partial) => return Ok(taken),
                    Err(_) => return Err("a chunk size is malformed".to_owned()),
                },
                Stage::LineEnd { last } => match unread {
                    [b'\r', b'\n', ..] if last => (2, Stage::Done),
                    [b'\r', b'\n', ..] => (2, Stage::ChunkSize),
                    [] | [b'\r'] => return Ok(taken),
                    _ => return Err("a chunk does not end where it should".to_owned()),
                },
                Stage::Body(0) => (0, Stage::Done),
                Stage::Chunk(0) => (0, Stage::LineEnd { last: false }),
                Stage::Body(_) | Stage::Chunk(_) | Stage::Done if unread.is_empty() => {
                    return Ok(taken);
                }
                Stage::Body(left) => {
                    let length = left.min(unread.len());
                    on_body(&unread[..length]);
                    (length, Stage::Body(left - length))
                }
                Stage::Chunk(left) => {
                    let length = left.min(unread.len());
                    on_body(&unread[..length]);
                    (length, Stage::Chunk(left - length))
                }
                Stage::Done => return Err("there are bytes after its end".to_owned()),
            };
            taken += length;
            self.0 = next;
        }
    }
}

/// The length of a head that is complete, and how its body is framed.
fn read_head(bytes: &[u8]) -> Result<Option<(usize, Stage)>, String> {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut head = httparse::Response::new(&mut headers);
    match head.parse(bytes) {
        Ok(Status::Complete(_)) if head.code != Some(200) => Err(excerpt(bytes)),
        Ok(Status::Complete(length)) => match framing(head.headers) {
            Some(stage) => Ok(Some((length, stage))),
            None => Err("it has no length and no chunks".to_owned()),
        },
        Ok(Status::Partial) => Ok(None),
        Err(cause) => Err(cause.to_string()),
    }
}

fn framing(headers: &[httparse::Header<'_>]) -> Option<Stage> {
    for header in headers {
        if header.name.eq_ignore_ascii_case("content-length") {
            let length = std::str::from_utf8(header.value).ok()?.trim().parse().ok()?;
            return Some(Stage::Body(length));
        }
        if header.name.eq_ignore_ascii_case("transfer-encoding") {
            return header.value.eq_ignore_ascii_case(b"chunked").then_some(Stage::ChunkSize);
        }
    }
    None
}

/// The beginning of `bytes`, for a failure's message.
pub(crate) fn excerpt(bytes: &[u8]) -> String {
    format!("{:?}", String::from_utf8_lossy(&bytes[..bytes.len().min(600)]))
}
