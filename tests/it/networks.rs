//! Networks that fail without a word.
#![allow(clippy::unwrap_used, reason = "the helpers of tests panic as tests do")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use dashscope_proxy::standin::StandIn;
use nix::libc;

use crate::envelope::{CHAT, MESSAGES};
use crate::failover::BODY;
use crate::harness::{LIMIT, Proxy, RawUpstream, post};

const ANSWER: &[u8] =
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";

/// From now on whatever comes for this connection is dropped, as by a firewall that has forgotten
/// it: nothing is acknowledged and nothing refused.
#[expect(unsafe_code, reason = "nix has no socket filters")]
fn forget(stream: &TcpStream) {
    let mut drop_all = libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: 0 };
    let program = libc::sock_fprog { len: 1, filter: &raw mut drop_all };
    // SAFETY: the kernel copies the program, which is valid for the length given.
    let outcome = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            std::mem::size_of_val(&program) as libc::socklen_t,
        )
    };
    assert_eq!(outcome, 0, "the filter is not taken");
}

/// An upstream whose first `forgotten` connections are forgotten once they have served a request.
fn forgetful(forgotten: usize) -> RawUpstream {
    let kept = Arc::new(std::sync::Mutex::new(Vec::new()));
    RawUpstream::start(move |stream, call| {
        stream.write_all(ANSWER).unwrap();
        if call <= forgotten {
            forget(stream);
            kept.lock().unwrap().push(stream.try_clone().unwrap());
        } else {
            // Whatever else comes here is answered, too.
            while stream.read(&mut [0; 65536]).is_ok_and(|count| count > 0) {
                stream.write_all(ANSWER).unwrap();
            }
        }
    })
}

fn before<'a>(standin: &'a StandIn, upstream: &RawUpstream) -> Proxy<'a> {
    let origin = upstream.origin();
    Proxy::builder(standin)
        .env("OPENAI_UPSTREAM_BASE_URL", format!("{origin}/compatible-mode/v1"))
        .env("UPSTREAM_BASE_URL", format!("{origin}/apps/anthropic"))
        .env("CONNECT_TIMEOUT_SECONDS", "2")
        .start()
}

#[test]
fn a_pooled_connection_that_was_forgotten_on_the_way_is_replaced_within_the_connect_limit() {
    for path in [CHAT, MESSAGES] {
        // Small, and larger than what can be under way at once.
        for size in [BODY.len(), 8 << 20] {
            let standin = StandIn::start().unwrap();
            let upstream = forgetful(1);
            let proxy = before(&standin, &upstream);
            assert_eq!(post(&proxy, path, BODY).status, 200);
            let mut body = BODY.as_bytes().to_vec();
            body.resize(size, b' ');
            // Far below the 600 s of UPSTREAM_TIMEOUT_SECONDS; the client waits for LIMIT.
            let answer = post(&proxy, path, &body);
            assert_eq!((answer.status, answer.text().as_str()), (200, "{}"), "{path} {size}");
        }
    }
}

#[test]
fn a_silent_upstream_that_is_there_is_waited_for() {
    let upstream = RawUpstream::start(|stream, _| {
        stream.write_all(ANSWER).unwrap();
        // The next request on this connection waits for twice the connect limit.
        while stream.read(&mut [0; 65536]).is_ok_and(|count| count > 0) {
            let _ = crossbeam_channel::never::<()>().recv_timeout(Duration::from_secs(4));
            stream.write_all(ANSWER).unwrap();
        }
    });
    let standin = StandIn::start().unwrap();
    let proxy = before(&standin, &upstream);
    for id in 1..=2 {
        assert_eq!(post(&proxy, CHAT, BODY).status, 200);
        // By then its connection is in the pool.
        assert!(proxy.wait_log(&format!(" request id={id} "), LIMIT));
    }
    assert_eq!(upstream.calls(), 1, "the pooled connection was given up");
}
