//! A bare HTTP/1.1 client that hides nothing: where chunks end, whether an answer was cut, on
//! which connection it came.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use dashscope_proxy::clock;

use super::answer::{Answer, Cut, Head, How};
use super::{AUTH, LIMIT, Proxy};

/// What is left of the body of the answer being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    Nothing,
    Length(usize),
    Chunked,
    UntilClose,
}

/// One connection.
pub(crate) struct Client {
    socket: TcpStream,
    /// Read from the socket, not yet used.
    buffer: Vec<u8>,
    rest: Rest,
    /// Methods of the requests whose answers are still to come.
    sent: VecDeque<String>,
    limit: Duration,
}

impl Client {
    /// Connects; every read that follows has [`LIMIT`].
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let socket = TcpStream::connect_timeout(&address, LIMIT).expect("a connection");
        socket.set_nodelay(true).expect("a socket option");
        socket.set_write_timeout(Some(LIMIT)).expect("a socket option");
        let sent = VecDeque::new();
        Self { socket, buffer: Vec::new(), rest: Rest::Nothing, sent, limit: LIMIT }
    }

    /// Sets how long each later read may take.
    pub(crate) fn set_limit(&mut self, limit: Duration) {
        self.limit = limit;
    }

    /// The socket, to shut it down or to look at its address.
    pub(crate) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Sends a request. `host` and `content-length` are added where they are missing (no length
    /// where a transfer encoding is given).
    pub(crate) fn send(
        &mut self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) {
        let mut request = format!("{method} {target} HTTP/1.1\r\n");
        let given = |name: &str| headers.iter().any(|(given, _)| given.eq_ignore_ascii_case(name));
        if !given("host") {
            request.push_str("host: proxy.test\r\n");
        }
        for (name, value) in headers {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        let has_length = given("content-length") || given("transfer-encoding");
        if !has_length && (!body.is_empty() || method == "POST") {
            request.push_str(&format!("content-length: {}\r\n", body.len()));
        }
        request.push_str("\r\n");
        let mut bytes = request.into_bytes();
        bytes.extend(body);
        self.sent.push_back(method.to_owned());
        // A server may answer (and close) before it has read everything; the read will tell.
        let _ = self.socket.write_all(&bytes);
    }

    /// Sends bytes as they are.
    ///
    /// # Errors
    /// The server has closed the connection.
    pub(crate) fn send_raw(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.socket.write_all(bytes)
    }

    /// Reads the next answer's head; interim answers (1xx) are skipped.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn read_head(&mut self) -> Result<Head, Cut> {
        let deadline = clock::instant() + self.limit;
        loop {
            let (length, head) = loop {
                match parse_head(&self.buffer).map_err(How::Malformed)? {
                    Some(parsed) => break parsed,
                    None => self.fill(deadline)?,
                }
            };
            self.buffer.drain(..length);
            if (100..200).contains(&head.status) {
                continue;
            }
            let method = self.sent.pop_front().unwrap_or_default();
            self.rest = rest(&head, &method).map_err(How::Malformed)?;
            return Ok(head);
        }
    }

    /// Reads one chunk of a chunked body, or else whatever comes next of it; none at its end.
    ///
    /// # Errors
    /// The body was cut here.
    pub(crate) fn read_chunk(&mut self) -> Result<Option<Vec<u8>>, Cut> {
        let deadline = clock::instant() + self.limit;
        match self.rest {
            Rest::Nothing => Ok(None),
            Rest::Chunked => self.read_framed_chunk(deadline),
            Rest::Length(left) => {
                self.fill_if_empty(deadline)?;
                let taken = self.take(left);
                let left = left - taken.len();
                self.rest = if left == 0 { Rest::Nothing } else { Rest::Length(left) };
                Ok(Some(taken))
            }
            Rest::UntilClose => match self.fill_if_empty(deadline) {
                Ok(()) => Ok(Some(self.take(usize::MAX))),
                Err(How::Closed) => {
                    self.rest = Rest::Nothing;
                    Ok(None)
                }
                Err(how) => Err(how.into()),
            },
        }
    }

    /// Reads the body to its end.
    ///
    /// # Errors
    /// It was cut; what had come is in the [`Cut`].
    pub(crate) fn read_body(&mut self) -> Result<Vec<u8>, Cut> {
        let mut body = Vec::new();
        loop {
            match self.read_chunk() {
                Ok(Some(bytes)) => body.extend(bytes),
                Ok(None) => return Ok(body),
                Err(Cut { how, received }) => {
                    body.extend(received);
                    return Err(Cut { how, received: body });
                }
            }
        }
    }

    /// Reads a whole answer.
    ///
    /// # Errors
    /// It was cut.
    pub(crate) fn read_answer(&mut self) -> Result<Answer, Cut> {
        let Head { status, headers } = self.read_head()?;
        Ok(Answer { status, headers, body: self.read_body()? })
    }

    /// Waits until the server ends the connection; false if it sends something or `limit` passes.
    pub(crate) fn wait_closed(&mut self, limit: Duration) -> bool {
        let deadline = clock::instant() + limit;
        self.buffer.is_empty() && matches!(self.fill(deadline), Err(How::Closed | How::Reset))
    }

    fn read_framed_chunk(&mut self, deadline: Instant) -> Result<Option<Vec<u8>>, Cut> {
        let (start, size) = loop {
            match httparse::parse_chunk_size(&self.buffer) {
                Ok(httparse::Status::Complete((start, size))) => break (start, size),
                Ok(httparse::Status::Partial) => self.fill(deadline)?,
                Err(error) => return Err(How::Malformed(error.to_string()).into()),
            }
        };
        let size = usize::try_from(size).expect("a chunk that fits into memory");
        if size == 0 {
            self.buffer.drain(..start);
            // Trailers, then an empty line.
            while self.read_line(deadline)? != b"\r\n" {}
            self.rest = Rest::Nothing;
            return Ok(None);
        }
        while self.buffer.len() < start + size + 2 {
            if let Err(how) = self.fill(deadline) {
                let end = self.buffer.len().min(start + size);
                let received = self.buffer[start.min(end)..end].to_vec();
                return Err(Cut { how, received });
            }
        }
        let chunk = self.buffer[start..start + size].to_vec();
        if &self.buffer[start + size..start + size + 2] != b"\r\n" {
            return Err(How::Malformed("a chunk without its end".to_owned()).into());
        }
        self.buffer.drain(..start + size + 2);
        Ok(Some(chunk))
    }

    fn read_line(&mut self, deadline: Instant) -> Result<Vec<u8>, How> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                return Ok(self.buffer.drain(..=end).collect());
            }
            self.fill(deadline)?;
        }
    }

    fn take(&mut self, at_most: usize) -> Vec<u8> {
        let count = self.buffer.len().min(at_most);
        self.buffer.drain(..count).collect()
    }

    fn fill_if_empty(&mut self, deadline: Instant) -> Result<(), How> {
        if self.buffer.is_empty() { self.fill(deadline) } else { Ok(()) }
    }

    /// Reads once more from the socket.
    fn fill(&mut self, deadline: Instant) -> Result<(), How> {
        let left = deadline.saturating_duration_since(clock::instant());
        if left.is_zero() {
            return Err(How::TimedOut);
        }
        self.socket.set_read_timeout(Some(left)).expect("a socket option");
        let mut bytes = [0; 16 * 1024];
        match self.socket.read(&mut bytes) {
            Ok(0) => Err(How::Closed),
            Ok(count) => {
                self.buffer.extend(&bytes[..count]);
                Ok(())
            }
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut => Err(How::TimedOut),
                ErrorKind::Interrupted => Ok(()),
                _ => Err(How::Reset),
            },
        }
    }
}

/// A head and its length, none while it is incomplete.
fn parse_head(bytes: &[u8]) -> Result<Option<(usize, Head)>, String> {
    let mut slots = [httparse::EMPTY_HEADER; 128];
    let mut parsed = httparse::Response::new(&mut slots);
    match parsed.parse(bytes) {
        Ok(httparse::Status::Partial) => Ok(None),
        Err(error) => Err(error.to_string()),
        Ok(httparse::Status::Complete(length)) => {
            let value = |field: &httparse::Header<'_>| {
                (field.name.to_owned(), String::from_utf8_lossy(field.value).into_owned())
            };
            let headers = parsed.headers.iter().map(value).collect();
            Ok(Some((length, Head { status: parsed.code.unwrap_or_default(), headers })))
        }
    }
}

/// How the body of this answer is delimited (RFC 9112 section 6.3).
fn rest(head: &Head, method: &str) -> Result<Rest, String> {
    if method == "HEAD" || matches!(head.status, 204 | 304) {
        return Ok(Rest::Nothing);
    }
    let length = head.header("content-length");
    match (head.header("transfer-encoding"), length) {
        (Some(_), Some(_)) => Err("transfer-encoding and content-length".to_owned()),
        (Some(_), None) => Ok(Rest::Chunked),
        (None, None) => Ok(Rest::UntilClose),
        (None, Some(length)) => match length.parse() {
            Ok(0) => Ok(Rest::Nothing),
            Ok(length) => Ok(Rest::Length(length)),
            Err(_) => Err(format!("content-length {length}")),
        },
    }
}

/// One request on a connection of its own.
pub(crate) fn request(
    address: SocketAddr,
    method: &str,
    target: &str,
    headers: &[(&str, &str)],
    body: impl AsRef<[u8]>,
) -> Answer {
    let mut client = Client::connect(address);
    client.send(method, target, headers, body.as_ref());
    client.read_answer().unwrap_or_else(|cut| panic!("{method} {target} was cut: {cut:?}"))
}

/// POSTs JSON to the proxy with its key.
pub(crate) fn post(proxy: &Proxy<'_>, path: &str, body: impl AsRef<[u8]>) -> Answer {
    let headers = [AUTH, ("content-type", "application/json")];
    request(proxy.address(), "POST", path, &headers, body)
}

/// GETs from the proxy with its key.
pub(crate) fn get(proxy: &Proxy<'_>, path: &str) -> Answer {
    request(proxy.address(), "GET", path, &[AUTH], b"")
}
