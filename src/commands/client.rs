//! One request to the proxy that runs at the configured address: HTTP/1.0 over a socket of its
//! own, because it must never go through an outbound proxy.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use serde_json::Value;

use super::CommandError;
use crate::config::Config;

/// How long a connection on this machine may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);

/// How long the proxy may be silent: it waits up to two seconds for its disk.
const READ_LIMIT: Duration = Duration::from_secs(15);

/// How much is read, in bytes: the status of 20,000 slots.
const LARGEST_ANSWER: u64 = 16 << 20;

/// What the running proxy said.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) address: SocketAddr,
    pub(super) body: Value,
}

/// Asks the running proxy; `None` when none runs.
pub(super) fn ask(
    config: &Config,
    method: &str,
    path: &str,
    body: &[u8],
) -> Result<Option<Answer>, CommandError> {
    let Some((address, mut socket)) = connect(config)? else { return Ok(None) };
    let strange = |what: &str| {
        let text = format!("what answers at {address} (HOST, PORT) is not this proxy: {what}");
        CommandError::Unavailable(text)
    };
    let bytes = exchange(config, &mut socket, method, path, body)
        .map_err(|error| strange(&error.to_string()))?;
    let (status, body) = parse(&bytes).ok_or_else(|| strange("it does not speak HTTP and JSON"))?;
    match status {
        200 => Ok(Some(Answer { address, body })),
        401 => Err(CommandError::Unavailable(format!(
            "the proxy at {address} does not accept this PROXY_API_KEY: was it changed since the proxy was started?"
        ))),
        _ => match (body["error"]["code"].as_str(), body["error"]["message"].as_str()) {
            (Some(code), Some(message)) => {
                let (code, message) = (code.to_owned(), message.to_owned());
                Err(CommandError::Refused { status, code, message })
            }
            _ => Err(strange(&format!("it answers with status {status}"))),
        },
    }
}

/// The address that is asked, for messages.
pub(super) fn shown_address(config: &Config) -> String {
    match config.host.contains(':') {
        true => format!("[{}]:{}", config.host, config.port),
        false => format!("{}:{}", config.host, config.port),
    }
}

/// A connection to whatever listens there. With port 0 nobody knows where the proxy is.
fn connect(config: &Config) -> Result<Option<(SocketAddr, TcpStream)>, CommandError> {
    if config.port == 0 {
        return Ok(None);
    }
    let failed = |error: io::Error| {
        let shown = shown_address(config);
        CommandError::Unavailable(format!("failed to connect to {shown} (HOST, PORT): {error}"))
    };
    for address in (config.host.as_str(), config.port).to_socket_addrs().map_err(failed)? {
        let address = reachable(address);
        match TcpStream::connect_timeout(&address, CONNECT_LIMIT) {
            Ok(socket) => return Ok(Some((address, socket))),
            Err(error) if says_nobody(error.kind()) => {}
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(None)
}

fn says_nobody(kind: io::ErrorKind) -> bool {
    use io::ErrorKind::{AddrNotAvailable, ConnectionRefused, HostUnreachable, NetworkUnreachable};
    matches!(kind, ConnectionRefused | AddrNotAvailable | HostUnreachable | NetworkUnreachable)
}

/// The address under which a listener on this machine is reached.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

/// HTTP/1.0: the answer is not chunked and ends with the connection.
fn exchange(
    config: &Config,
    socket: &mut TcpStream,
    method: &str,
    path: &str,
    body: &[u8],
) -> io::Result<Vec<u8>> {
    socket.set_read_timeout(Some(READ_LIMIT))?;
    socket.set_write_timeout(Some(READ_LIMIT))?;
    let mut request = format!(
        "{method} {path} HTTP/1.0\r\nhost: {}\r\nauthorization: Bearer {}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        shown_address(config),
        config.proxy_key.expose(),
        body.len()
    )
    .into_bytes();
    request.extend(body);
    socket.write_all(&request)?;
    let mut answer = Vec::new();
    socket.take(LARGEST_ANSWER).read_to_end(&mut answer)?;
    Ok(answer)
}

/// Status and body. A body that was cut is no JSON.
fn parse(bytes: &[u8]) -> Option<(u16, Value)> {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut head = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(length) = head.parse(bytes).ok()? else { return None };
    Some((head.code?, serde_json::from_slice(&bytes[length..]).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_a_status_and_whole_json() {
        let (status, body) = parse(b"HTTP/1.0 200 OK\r\na: b\r\n\r\n{\"x\":1}").unwrap();
        assert_eq!((status, &body["x"]), (200, &Value::from(1)));
        for bytes in [&b""[..], b"SSH-2.0\r\n", b"HTTP/1.0 200 OK\r\n\r\n{\"x\":", b"HTTP/1.1 200"]
        {
            assert!(parse(bytes).is_none(), "{bytes:?}");
        }
    }

    #[test]
    fn a_listener_on_every_interface_is_reached_over_loopback() {
        for (listens, reached) in
            [("0.0.0.0:1", "127.0.0.1:1"), ("[::]:1", "[::1]:1"), ("192.0.2.1:1", "192.0.2.1:1")]
        {
            assert_eq!(reachable(listens.parse().unwrap()), reached.parse().unwrap());
        }
    }
}
