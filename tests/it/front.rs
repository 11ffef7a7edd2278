//! The front door: nothing that a stranger sends ends the process, makes it grow without bound,
//! or holds up another client.
//!
//! One module for each kind of stranger. What is measured (memory, descriptors) is read from
//! `/proc`, and that the front is free is always shown by a request that is served.

mod bursts;
mod junk;
mod leaving;
mod lengths;
mod memory;
mod overload;
mod panics;
mod pipelining;
mod scarcity;
mod slow;
mod smuggling;
mod stuck;
mod undelivered;

use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpStream};
use std::sync::Once;
use std::time::Duration;

use dashscope_proxy::clock;
use dashscope_proxy::standin::StandIn;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::envelope::{CHAT, MESSAGES};
use crate::harness::{AUTH, Answer, Builder, Client, Cut, LIMIT, Proxy, request};

/// A body that both paths take.
const BODY: &[u8] = br#"{"model":"any","messages":[{"role":"user","content":"hi"}]}"#;

/// A wrong key.
const WRONG: (&str, &str) = ("authorization", "Bearer not-the-key-of-this-proxy");

/// Resident memory that no stranger makes the process exceed, in MiB.
const MODEST: u64 = 100;

/// How often something is looked at that nobody tells of.
const STEP: Duration = Duration::from_millis(20);

/// A proxy whose log says no more than is needed, because these tests send many requests.
fn quiet(standin: &StandIn) -> Builder<'_> {
    raise_descriptors();
    Proxy::builder(standin).env("RUST_LOG", "info")
}

/// The same for tests that send thousands of them.
fn silent(standin: &StandIn) -> Builder<'_> {
    quiet(standin).env("RUST_LOG", "warn,dashscope_proxy::service=info")
}

/// This process holds hundreds of connections; the tests of this binary share one limit.
fn raise_descriptors() {
    static RAISED: Once = Once::new();
    RAISED.call_once(|| {
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("the limit on descriptors");
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard).expect("a limit that is allowed");
    });
}

/// Asks for a completion, on this connection.
fn chat(client: &mut Client) -> Result<Answer, Cut> {
    send_chat(client);
    client.read_answer()
}

fn send_chat(client: &mut Client) {
    client.send("POST", CHAT, &[AUTH], BODY);
}

/// Asks for our own page, on this connection.
fn health(client: &mut Client) -> Result<Answer, Cut> {
    client.send("GET", "/health", &[], b"");
    client.read_answer()
}

/// The front is free: a page, a completion and a refusal, each for a new client.
fn assert_serves(proxy: &Proxy<'_>) {
    let ask = |method, path, headers: &[(&str, &str)], body: &[u8]| {
        request(proxy.address(), method, path, headers, body).status
    };
    assert_eq!(ask("GET", "/health", &[], b""), 200);
    assert_eq!(ask("POST", CHAT, &[AUTH], BODY), 200);
    assert_eq!(ask("POST", CHAT, &[WRONG], BODY), 401);
}

/// Asks from a new connection until the proxy serves again; false if it does not within `limit`.
fn serves_within(address: SocketAddr, limit: Duration) -> bool {
    eventually(limit, || {
        let Ok(socket) = TcpStream::connect_timeout(&address, STEP * 10) else { return false };
        drop(socket);
        let mut client = Client::connect(address);
        client.set_limit(Duration::from_secs(1));
        health(&mut client).is_ok_and(|answer| answer.status == 200)
    })
}

/// Looks again and again until it is so; false if it is not within `limit`.
fn eventually(limit: Duration, mut is_so: impl FnMut() -> bool) -> bool {
    let deadline = clock::instant() + limit;
    loop {
        if is_so() {
            return true;
        }
        if clock::instant() >= deadline {
            return false;
        }
        pause(STEP);
    }
}

/// The pace of a slow client, not a wait for anything.
fn pause(length: Duration) {
    let _ = crossbeam_channel::never::<()>().recv_timeout(length);
}

/// Whether the server has ended this connection, by now and whatever it sent before.
fn is_over(client: &Client) -> bool {
    let mut socket = client.socket();
    socket.set_read_timeout(Some(Duration::from_millis(1))).expect("a socket option");
    let mut bytes = [0; 16 * 1024];
    loop {
        match socket.read(&mut bytes) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut => return false,
                ErrorKind::Interrupted => {}
                _ => return true,
            },
        }
    }
}

/// Waits until the server has ended every one of these; how many it has not within `limit`.
fn still_open(clients: &mut Vec<Client>, limit: Duration) -> usize {
    eventually(limit, || {
        clients.retain(|client| !is_over(client));
        clients.is_empty()
    });
    clients.len()
}

/// Reads whatever comes until the connection ends. `None`: it does not within [`LIMIT`].
fn read_to_end(client: &Client) -> Option<Vec<u8>> {
    let deadline = clock::instant() + LIMIT;
    let mut socket = client.socket();
    let mut all = Vec::new();
    let mut bytes = [0; 16 * 1024];
    loop {
        let left = deadline.saturating_duration_since(clock::instant());
        if left.is_zero() {
            return None;
        }
        socket.set_read_timeout(Some(left)).expect("a socket option");
        match socket.read(&mut bytes) {
            Ok(0) => return Some(all),
            Ok(count) => all.extend(&bytes[..count]),
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut => return None,
                ErrorKind::Interrupted => {}
                _ => return Some(all),
            },
        }
    }
}

/// The statuses of the answers in these bytes, interim ones too.
fn statuses(bytes: &[u8]) -> Vec<u16> {
    let text = String::from_utf8_lossy(bytes);
    let lines = text.split("HTTP/1.1 ").skip(1);
    lines.map(|line| line[..3].parse().expect("a status")).collect()
}

/// Resident memory now, in MiB.
fn resident(proxy: &Proxy<'_>) -> u64 {
    status_field(proxy, "VmRSS:") >> 10
}

/// The most that it has ever been, in MiB.
fn peak(proxy: &Proxy<'_>) -> u64 {
    status_field(proxy, "VmHWM:") >> 10
}

fn threads(proxy: &Proxy<'_>) -> u64 {
    status_field(proxy, "Threads:")
}

fn status_field(proxy: &Proxy<'_>, name: &str) -> u64 {
    let path = format!("/proc/{}/status", proxy.pid());
    let text = std::fs::read_to_string(path).expect("the process lives");
    let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("a known field");
    let number = line.split_ascii_whitespace().next().expect("a value");
    number.parse().expect("a number")
}

fn descriptors(proxy: &Proxy<'_>) -> usize {
    let path = format!("/proc/{}/fd", proxy.pid());
    std::fs::read_dir(path).expect("the process lives").count()
}
