//! An upstream that says what no upstream should, byte for byte.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// It answers as it is told until the test ends.
pub(crate) struct RawUpstream {
    address: SocketAddr,
    calls: Arc<AtomicUsize>,
}

impl RawUpstream {
    /// Reads the head of each request (and what came with it), then does what `answer` does, told
    /// which call this is, from 1. The connection ends when that returns.
    pub(crate) fn start(answer: impl Fn(&mut TcpStream, usize) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let calls = Arc::<AtomicUsize>::default();
        let (counted, answer) = (Arc::clone(&calls), Arc::new(answer));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (counted, answer) = (Arc::clone(&counted), Arc::clone(&answer));
                thread::spawn(move || {
                    let mut stream = stream.expect("a connection");
                    if read_head(&mut stream) {
                        let call = counted.fetch_add(1, Ordering::SeqCst) + 1;
                        answer(&mut stream, call);
                    }
                });
            }
        });
        Self { address, calls }
    }

    /// The same bytes to everybody.
    pub(crate) fn saying(bytes: impl Into<Vec<u8>>) -> Self {
        let bytes = bytes.into();
        Self::start(move |stream, _| drop(stream.write_all(&bytes)))
    }

    /// Where it listens.
    pub(crate) fn origin(&self) -> String {
        format!("http://{}", self.address)
    }

    /// How many requests it has had.
    pub(crate) fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }
}

fn read_head(stream: &mut TcpStream) -> bool {
    let mut seen: Vec<u8> = Vec::new();
    let mut bytes = [0; 4096];
    while !seen.windows(4).any(|window| window == b"\r\n\r\n") {
        match stream.read(&mut bytes) {
            Ok(0) | Err(_) => return false,
            Ok(count) => seen.extend(&bytes[..count]),
        }
    }
    true
}
