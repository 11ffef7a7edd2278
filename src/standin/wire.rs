//! Reading a request off a connection.

use std::io::{self, BufRead, Read, Write};

use super::Stream;

/// No head of a test is longer.
const MAX_HEAD_BYTES: u64 = 1 << 20;
const MAX_HEADERS: usize = 256;

/// A request as it came.
#[derive(Clone, Debug, Default)]
pub(super) struct Request {
    pub(super) method: String,
    pub(super) target: String,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
    /// The client wants no further request on this connection.
    pub(super) last: bool,
}

impl Request {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        header(&self.headers, name)
    }

    pub(super) fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
    }

    /// The DashScope key, from either header.
    pub(super) fn key(&self) -> Option<&str> {
        let bearer = self.header("authorization").and_then(|value| {
            let (scheme, key) = value.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then_some(key.trim())
        });
        bearer.or_else(|| self.header("x-api-key"))
    }
}

/// The first header of this name.
pub(super) fn header<'a>(headers: &'a [(String, String)], name: &str) -> Option<&'a str> {
    headers
        .iter()
        .find(|(given, _)| given.eq_ignore_ascii_case(name))
        .map(|(_, value)| value.as_str())
}

/// The connection's reading half, with what was read too much; writing goes through it.
pub(super) type Reader = io::BufReader<Box<dyn Stream>>;

/// The next request, body included, or none when the client closed the connection before one.
///
/// # Errors
/// The connection failed or closed in the middle, or what came is no HTTP/1.
pub(super) fn read_request(reader: &mut Reader) -> io::Result<Option<Request>> {
    let head = read_head(reader)?;
    if head.is_empty() {
        return Ok(None);
    }
    let mut slots = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut parsed = httparse::Request::new(&mut slots);
    let status = parsed.parse(&head).map_err(|error| invalid(&error.to_string()))?;
    if status.is_partial() {
        return Err(invalid("half a request head"));
    }
    let mut request = Request {
        method: parsed.method.unwrap_or_default().to_owned(),
        target: parsed.path.unwrap_or_default().to_owned(),
        headers: parsed
            .headers
            .iter()
            .map(|field| (field.name.to_owned(), String::from_utf8_lossy(field.value).into_owned()))
            .collect(),
        ..Request::default()
    };
    let connection = request.header("connection").unwrap_or_default().to_ascii_lowercase();
    request.last = match parsed.version {
        Some(0) => !connection.contains("keep-alive"),
        _ => connection.contains("close"),
    };
    if request.header("expect").is_some_and(|value| value.eq_ignore_ascii_case("100-continue")) {
        reader.get_mut().write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
        reader.get_mut().flush()?;
    }
    request.body = read_body(reader, &request)?;
    Ok(Some(request))
}

/// The bytes up to and with the empty line; nothing if the connection ended before the first.
fn read_head(reader: &mut Reader) -> io::Result<Vec<u8>> {
    let mut limited = reader.take(MAX_HEAD_BYTES);
    let mut head = Vec::new();
    loop {
        let before = head.len();
        limited.read_until(b'\n', &mut head)?;
        match &head[before..] {
            [] if head.is_empty() => return Ok(head),
            b"\r\n" | b"\n" if before == 0 => head.clear(),
            b"\r\n" | b"\n" => return Ok(head),
            line if !line.ends_with(b"\n") => return Err(io::ErrorKind::UnexpectedEof.into()),
            _ => {}
        }
    }
}

fn read_body(reader: &mut Reader, request: &Request) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    let chunked = request
        .header("transfer-encoding")
        .is_some_and(|value| value.to_ascii_lowercase().ends_with("chunked"));
    if chunked {
        loop {
            let size = usize::from_str_radix(&read_chunk_line(reader)?, 16)
                .map_err(|_| invalid("no chunk size"))?;
            if size == 0 {
                while !read_chunk_line(reader)?.is_empty() {}
                return Ok(body);
            }
            read_exactly(reader, size, &mut body)?;
            read_chunk_line(reader)?;
        }
    }
    if let Some(length) = request.header("content-length") {
        let length = length.trim().parse().map_err(|_| invalid("no content length"))?;
        read_exactly(reader, length, &mut body)?;
    }
    Ok(body)
}

/// A line without its end and without a chunk extension.
fn read_chunk_line(reader: &mut Reader) -> io::Result<String> {
    let mut line = String::new();
    if reader.take(MAX_HEAD_BYTES).read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let line = line.split(';').next().unwrap_or_default();
    Ok(line.trim().to_owned())
}

fn read_exactly(reader: &mut Reader, length: usize, body: &mut Vec<u8>) -> io::Result<()> {
    let wanted = u64::try_from(length).unwrap_or(u64::MAX);
    let read = reader.take(wanted).read_to_end(body)?;
    if read < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(())
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
