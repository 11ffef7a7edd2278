//! The way to DashScope: connections, what goes wrong on them, TLS and outbound proxies.
#![allow(clippy::unwrap_used, reason = "the helpers of tests panic as tests do")]

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use dashscope_proxy::standin::{End, Framing, Part, Reply, StandIn, Wrap, plain};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, getsockname, socket};
use parking_lot::Mutex;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::envelope::{CHAT, MESSAGES, message_on};
use crate::harness::{AUTH, How, LIMIT, Proxy, post};

/// A port that refuses every connection: bound, so that nobody else gets it, and not listening.
pub(crate) struct ClosedPort {
    _socket: OwnedFd,
    port: u16,
}

impl ClosedPort {
    pub(crate) fn new() -> Self {
        let kind = SockType::Stream;
        let socket = socket(AddressFamily::Inet, kind, SockFlag::SOCK_CLOEXEC, None).unwrap();
        let any = SockaddrIn::from(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0));
        bind(socket.as_raw_fd(), &any).unwrap();
        let port = getsockname::<SockaddrIn>(socket.as_raw_fd()).unwrap().port();
        Self { _socket: socket, port }
    }

    pub(crate) fn origin(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

/// Both base URLs under this origin.
fn bases(origin: &str) -> [(&'static str, String); 2] {
    [
        ("UPSTREAM_BASE_URL", format!("{origin}/apps/anthropic")),
        ("OPENAI_UPSTREAM_BASE_URL", format!("{origin}/compatible-mode/v1")),
    ]
}

fn start_with<'a>(standin: &'a StandIn, origin: &str, env: &[(&str, &str)]) -> Proxy<'a> {
    let mut builder = Proxy::builder(standin);
    for (name, value) in bases(origin) {
        builder = builder.env(name, value);
    }
    for (name, value) in env {
        builder = builder.env(name, *value);
    }
    builder.start()
}

/// Waits until request number `id` (from 1) is over, its connection back in the pool. Its client
/// has the last byte a moment earlier.
#[track_caller]
fn wait_done(proxy: &Proxy<'_>, id: usize) {
    assert!(proxy.wait_log(&format!(" request id={id} "), LIMIT), "request {id} goes on");
}

/// What the pool knows, without what was used: a call that was sent whole may have been worked on.
fn status_of(proxy: &Proxy<'_>) -> serde_json::Value {
    let mut status = proxy.pool();
    for slot in status["models"].as_array_mut().unwrap() {
        for count in ["requests", "unknownRequests", "estimatedTokens", "estimatedTokensLeft"] {
            slot.as_object_mut().unwrap().remove(count).unwrap();
        }
    }
    status
}

fn state_of(proxy: &Proxy<'_>) -> serde_json::Value {
    let mut state = proxy.state();
    let records = state["runtimeState"].as_object_mut().unwrap();
    records.retain(|name, _| !name.starts_with("usage:"));
    state
}

/// Asks in both protocols for something that fails; returns what the client is told. The pool
/// must not learn anything from it.
#[track_caller]
fn failures(proxy: &Proxy<'_>, status: u16) -> Vec<String> {
    let before = status_of(proxy);
    let file = state_of(proxy);
    let told = [CHAT, MESSAGES].map(|path| {
        let answer = post(proxy, path, "{}");
        assert_eq!(answer.status, status, "{path}: {answer:?}");
        message_on(path, &answer)
    });
    assert_eq!(status_of(proxy), before);
    assert_eq!(state_of(proxy), file);
    told.to_vec()
}

#[track_caller]
fn assert_each_says(told: &[String], words: &[&str]) {
    for message in told {
        let lower = message.to_lowercase();
        assert!(words.iter().any(|word| lower.contains(word)), "{words:?} is not in {message}");
    }
}

#[test]
fn forty_requests_in_a_row_need_at_most_two_connections() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    for round in 0..10 {
        assert_eq!(post(&proxy, CHAT, "{}").status, 200);
        assert_eq!(post(&proxy, MESSAGES, r#"{"stream":true}"#).status, 200);
        assert_eq!(post(&proxy, CHAT, r#"{"stream":true}"#).status, 200);
        standin.reply_once("*", "*", Reply::json(400, "{}"));
        assert_eq!(post(&proxy, CHAT, "{}").status, 400, "{round}");
    }
    assert_eq!(standin.call_count(), 40);
    assert!(standin.connections() <= 2, "{} connections", standin.connections());
}

#[test]
fn a_refused_connection_is_502_with_the_cause_and_teaches_nothing() {
    let standin = StandIn::start().unwrap();
    let closed = ClosedPort::new();
    let proxy = start_with(&standin, &closed.origin(), &[]);
    let told = failures(&proxy, 502);
    assert_each_says(&told, &["refused"]);
    for message in &told {
        assert!(!message.contains(&closed.port.to_string()), "{message}");
    }
}

#[test]
fn a_name_that_is_unknown_is_told_and_teaches_nothing() {
    let standin = StandIn::start().unwrap();
    let env = [("CONNECT_TIMEOUT_SECONDS", "1")];
    let proxy = start_with(&standin, "http://no-such-host.invalid", &env);
    let before = status_of(&proxy);
    for path in [CHAT, MESSAGES] {
        let answer = post(&proxy, path, "{}");
        // Without a name server the question itself takes too long.
        assert!([502, 504].contains(&answer.status), "{answer:?}");
        assert_each_says(&[message_on(path, &answer)], &["name"]);
    }
    assert_eq!(status_of(&proxy), before);
}

#[test]
fn a_fresh_connection_that_breaks_before_the_head_is_502_without_a_repeat() {
    for (reply, words) in [
        (Reply::ResetBeforeHead, ["reset", "broke"]),
        (Reply::CloseBeforeHead, ["closed", "broke"]),
    ] {
        let standin = StandIn::start().unwrap();
        let proxy = Proxy::start(&standin);
        // A repeat would be answered normally, and seen by its status.
        standin.reply_once("*", "*", reply.clone());
        let before = status_of(&proxy);
        let answer = post(&proxy, CHAT, "{}");
        assert_eq!(answer.status, 502, "{reply:?}: {answer:?}");
        assert_each_says(&[message_on(CHAT, &answer)], &words);
        assert_eq!(standin.call_count(), 1, "{reply:?}");
        assert_eq!(status_of(&proxy), before);
        standin.reply("*", "*", reply.clone());
        failures(&proxy, 502);
        assert_eq!(standin.call_count(), 3, "{reply:?}");
        standin.clear();
        assert_eq!(post(&proxy, CHAT, "{}").status, 200);
        assert_eq!(standin.slots().last().unwrap(), "k1/m1");
    }
}

#[test]
fn an_answer_that_does_not_come_in_time_is_504_and_is_never_repeated() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::builder(&standin).env("UPSTREAM_TIMEOUT_SECONDS", "1").start();
    standin.reply("*", "*", Reply::HangBeforeHead);
    let told = failures(&proxy, 504);
    assert_each_says(&told, &["time", "long"]);
    assert_eq!(standin.call_count(), 2);
    // Neither on a connection that had served before.
    standin.clear();
    assert_eq!(post(&proxy, CHAT, "{}").status, 200);
    wait_done(&proxy, 3);
    standin.reply("*", "*", Reply::HangBeforeHead);
    let before = (standin.call_count(), standin.connections());
    assert_eq!(post(&proxy, CHAT, "{}").status, 504);
    assert_eq!(standin.call_count(), before.0 + 1);
    assert_eq!(standin.connections(), before.1, "the connection was not reused");
    // The call is given up, not left running.
    assert!(standin.wait_open(0, LIMIT));
}

#[test]
fn a_tls_handshake_that_hangs_is_ended_by_the_connect_timeout() {
    let standin = StandIn::start().unwrap();
    // The kernel accepts for it; nobody ever speaks.
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let origin = format!("https://{}", silent.local_addr().unwrap());
    let proxy = start_with(&standin, &origin, &[("CONNECT_TIMEOUT_SECONDS", "1")]);
    let told = failures(&proxy, 504);
    assert_each_says(&told, &["connect"]);
}

#[test]
fn a_stream_that_falls_silent_is_cut_and_not_ended() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::builder(&standin).env("STREAM_IDLE_TIMEOUT_SECONDS", "1").start();
    let hangs = |framing, content_type: &str| Reply::Stream {
        headers: vec![("content-type".to_owned(), content_type.to_owned())],
        parts: vec![Part::now("data: {}\n\n")],
        framing,
        end: End::Hang,
    };
    for content_type in ["text/event-stream", "application/json"] {
        for framing in [Framing::Length, Framing::Chunked] {
            let calls = standin.call_count();
            standin.reply("*", "*", hangs(framing, content_type));
            let mut client = proxy.connect();
            client.send("POST", CHAT, &[AUTH], b"{}");
            assert_eq!(client.read_head().unwrap().status, 200);
            let cut = client.read_body().unwrap_err();
            assert_eq!(cut.received, b"data: {}\n\n", "{framing:?} {content_type}: {cut:?}");
            assert_ne!(cut.how, How::TimedOut, "{framing:?} {content_type}");
            assert_eq!(standin.call_count(), calls + 1);
            assert!(standin.wait_closed(calls, LIMIT), "the call upstream goes on");
        }
    }
}

#[test]
fn there_is_never_a_second_call_after_an_answers_first_byte() {
    for end in [End::Fin, End::Reset] {
        for framing in [Framing::Length, Framing::Chunked] {
            let standin = StandIn::start().unwrap();
            let proxy = Proxy::start(&standin);
            // So that the cut comes on a connection that was used before.
            assert_eq!(post(&proxy, CHAT, "{}").status, 200);
            wait_done(&proxy, 1);
            let parts = vec![Part::now("{\"a\":")];
            let headers = vec![("content-type".to_owned(), "application/json".to_owned())];
            standin.reply_once("*", "*", Reply::Stream { headers, parts, framing, end });
            let mut client = proxy.connect();
            client.send("POST", CHAT, &[AUTH], b"{}");
            let cut = client.read_answer().unwrap_err();
            assert_ne!(cut.how, How::TimedOut, "{framing:?} {end:?}");
            assert_eq!(standin.call_count(), 2, "{framing:?} {end:?}");
            assert_eq!(standin.connections(), 1, "the connection was not reused");
            assert_eq!(post(&proxy, CHAT, "{}").status, 200);
        }
    }
}

#[test]
fn half_a_head_on_a_used_connection_is_502_without_a_repeat() {
    let standin = StandIn::start().unwrap();
    let whole = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
    let upstream = Raw::start(vec![vec![whole, "HTTP/1.1 200 OK\r\ncont"], vec![whole]]);
    let proxy = start_with(&standin, &upstream.origin(), &[]);
    assert_eq!(post(&proxy, CHAT, "{}").status, 200);
    wait_done(&proxy, 1);
    let answer = post(&proxy, CHAT, "{}");
    assert_eq!(answer.status, 502, "{answer:?}");
    message_on(CHAT, &answer);
    assert_eq!(upstream.requests(), 2);
}

#[test]
fn what_is_not_http_is_502() {
    let standin = StandIn::start().unwrap();
    let upstream = Raw::start(vec![vec!["SSH-2.0-OpenSSH_9.6\r\n\r\n"]; 2]);
    let proxy = start_with(&standin, &upstream.origin(), &[]);
    failures(&proxy, 502);
}

#[test]
fn a_pooled_connection_that_went_stale_is_not_noticed_by_the_client() {
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    standin.reply("*", "*", Reply::CloseAfterAnswer(Box::new(Reply::Normal)));
    for path in [CHAT, MESSAGES, CHAT, MESSAGES, CHAT] {
        assert_eq!(post(&proxy, path, "{}").status, 200);
        assert!(standin.wait_open(0, LIMIT));
    }
    // Closed from the other side while it lay idle.
    standin.clear();
    assert_eq!(post(&proxy, CHAT, "{}").status, 200);
    while !standin.wait_open(0, std::time::Duration::from_millis(10)) {
        standin.close_idle();
    }
    assert_eq!(post(&proxy, CHAT, "{}").status, 200);
    assert_eq!(standin.call_count(), 7);
}

#[test]
fn a_used_connection_that_breaks_without_a_byte_allows_exactly_one_repeat() {
    for reply in [Reply::CloseBeforeHead, Reply::ResetBeforeHead] {
        let standin = StandIn::start().unwrap();
        let proxy = Proxy::start(&standin);
        assert_eq!(post(&proxy, CHAT, "{}").status, 200);
        wait_done(&proxy, 1);
        standin.reply_once("*", "*", reply.clone());
        let body = format!(r#"{{"model":"m9","a":"{}"}}"#, "b".repeat(50_000));
        let answer = post(&proxy, CHAT, &body);
        assert_eq!(answer.status, 200, "{reply:?}: {answer:?}");
        assert_eq!(answer.header("x-proxy-attempts"), Some("2"));
        let calls = standin.calls();
        assert_eq!(standin.slots(), ["k1/m1"; 3], "{reply:?}");
        assert_eq!(calls[1].connection, 0, "the connection was not reused");
        assert_ne!(calls[2].connection, 0);
        assert!(calls[1].body == calls[2].body && calls[2].body.len() == body.len());

        wait_done(&proxy, 2);
        // The repeat breaks as well: that is the end of it.
        standin.reply("*", "*", reply.clone());
        let before = status_of(&proxy);
        let answer = post(&proxy, CHAT, "{}");
        assert_eq!(answer.status, 502, "{reply:?}: {answer:?}");
        message_on(CHAT, &answer);
        assert_eq!(standin.call_count(), 5, "{reply:?}");
        assert_eq!(status_of(&proxy), before);
    }
}

/// An upstream that is no HTTP server: for each connection in turn, what each request on it is
/// answered with; then the connection is closed.
struct Raw {
    address: SocketAddr,
    requests: Arc<Mutex<usize>>,
}

impl Raw {
    fn start(script: Vec<Vec<&'static str>>) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(Mutex::new(0));
        let count = Arc::clone(&requests);
        // Ends with its script; a test that asks for less leaves it to the end of the process.
        std::thread::spawn(move || {
            for answers in script {
                let Ok((socket, _)) = listener.accept() else { return };
                let mut reader = BufReader::new(socket);
                for answer in answers {
                    if read_request(&mut reader).is_err() {
                        break;
                    }
                    *count.lock() += 1;
                    let _ = reader.get_mut().write_all(answer.as_bytes());
                }
            }
        });
        Self { address, requests }
    }

    fn origin(&self) -> String {
        format!("http://{}", self.address)
    }

    fn requests(&self) -> usize {
        *self.requests.lock()
    }
}

fn read_head(reader: &mut BufReader<TcpStream>) -> io::Result<String> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(head)
}

fn read_request(reader: &mut BufReader<TcpStream>) -> io::Result<()> {
    let head = read_head(reader)?.to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
    let length = length.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    reader.read_exact(&mut vec![0; length])
}

/// A CA, a certificate of it for these names, and the stand-in that shows it.
struct Private {
    ca_pem: String,
    standin: StandIn,
}

impl Private {
    fn start(names: &[&str]) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca_key = KeyPair::generate().unwrap();
        let ca = params.self_signed(&ca_key).unwrap();
        let issuer = Issuer::new(params, ca_key);
        let key = KeyPair::generate().unwrap();
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let leaf = CertificateParams::new(names).unwrap().signed_by(&key, &issuer).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![leaf.der().clone()],
                PrivatePkcs8KeyDer::from(key.serialize_der()).into(),
            )
            .unwrap();
        let config = Arc::new(config);
        let wrap: Wrap = Arc::new(move |socket| {
            let session = ServerConnection::new(Arc::clone(&config)).map_err(io::Error::other)?;
            Ok(Box::new(StreamOwned::new(session, socket)))
        });
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        Self { ca_pem: ca.pem(), standin: StandIn::start_on(listener, wrap).unwrap() }
    }

    fn origin(&self) -> String {
        format!("https://{}", self.standin.address())
    }
}

#[test]
fn a_private_ca_is_trusted_when_its_file_is_named() {
    let tls = Private::start(&["127.0.0.1"]);
    let mut builder = Proxy::builder(&tls.standin)
        .file("ca.pem", &format!("# ours\n{}", tls.ca_pem))
        .env("UPSTREAM_CA_FILE", "ca.pem");
    for (name, value) in bases(&tls.origin()) {
        builder = builder.env(name, value);
    }
    let proxy = builder.start();
    for _ in 0..5 {
        assert_eq!(post(&proxy, CHAT, "{}").status, 200);
        let stream = post(&proxy, MESSAGES, r#"{"stream":true}"#);
        assert_eq!(stream.status, 200, "{stream:?}");
        assert!(
            stream.text().ends_with("event:message_stop\ndata:{\"type\":\"message_stop\"}\n\n")
        );
    }
    assert_eq!(tls.standin.call_count(), 10);
    assert!(tls.standin.connections() <= 2, "{} connections", tls.standin.connections());
    // A cut looks cut over TLS as well, and a stale connection is repeated.
    let cut = Reply::sse(vec![Part::now("data: {}\n\n")], End::Fin);
    tls.standin.reply_once("*", "*", cut);
    let mut client = proxy.connect();
    client.send("POST", CHAT, &[AUTH], b"{}");
    let cut = client.read_answer().unwrap_err();
    assert_eq!(cut.received, b"data: {}\n\n");
    assert_eq!(post(&proxy, CHAT, "{}").status, 200);
    wait_done(&proxy, 12);
    tls.standin.reply_once("*", "*", Reply::CloseBeforeHead);
    assert_eq!(post(&proxy, CHAT, "{}").status, 200);
    assert_eq!(tls.standin.call_count(), 14);
}

#[test]
fn a_certificate_nobody_vouches_for_is_502_and_named_as_the_cause() {
    let tls = Private::start(&["127.0.0.1"]);
    let proxy = start_with(&tls.standin, &tls.origin(), &[]);
    let told = failures(&proxy, 502);
    assert_each_says(&told, &["certificate"]);
    assert_eq!(tls.standin.call_count(), 0);
}

#[test]
fn a_certificate_for_another_name_is_502_and_named_as_the_cause() {
    let tls = Private::start(&["dashscope.example"]);
    let mut builder =
        Proxy::builder(&tls.standin).file("ca.pem", &tls.ca_pem).env("UPSTREAM_CA_FILE", "ca.pem");
    for (name, value) in bases(&tls.origin()) {
        builder = builder.env(name, value);
    }
    let proxy = builder.start();
    assert_each_says(&failures(&proxy, 502), &["certificate"]);
    assert_eq!(tls.standin.call_count(), 0);
}

#[test]
fn a_ca_file_that_cannot_be_used_is_told_at_start() {
    let standin = StandIn::start().unwrap();
    for text in [None, Some(""), Some("no certificate"), Some("-----BEGIN CERTIFICATE-----\nx")] {
        let mut builder = Proxy::builder(&standin).env("UPSTREAM_CA_FILE", "ca.pem");
        if let Some(text) = text {
            builder = builder.file("ca.pem", text);
        }
        let folder = builder.folder();
        let output = builder.env("PORT", "99999").run_to_exit();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(78), "{text:?}: {told}");
        assert!(told.contains("UPSTREAM_CA_FILE") && !told.contains("ca.pem"), "{text:?}: {told}");
        assert!(told.contains("PORT"), "all at once: {told}");
        assert!(!folder.join("proxy-state.json.lock").exists(), "nothing was touched");
    }
}

/// What an outbound proxy does with a `CONNECT`.
#[derive(Clone, Copy)]
enum Conduct {
    /// Connects to this address, whatever was asked for.
    Tunnel(SocketAddr),
    Refuse(&'static str),
    Hang,
}

/// A tiny HTTP proxy that knows `CONNECT` only.
struct Outbound {
    address: SocketAddr,
    heads: Arc<Mutex<Vec<String>>>,
    stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Outbound {
    fn start(conduct: Conduct) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let (heads, stopping) =
            (Arc::<Mutex<Vec<String>>>::default(), Arc::<AtomicBool>::default());
        let (seen, stop) = (Arc::clone(&heads), Arc::clone(&stopping));
        let thread = std::thread::spawn(move || {
            // Kept open to the end where nothing is answered.
            let mut hanging = Vec::new();
            while let Ok((socket, _)) = listener.accept() {
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                let mut reader = BufReader::new(socket);
                let Ok(head) = read_head(&mut reader) else { continue };
                seen.lock().push(head);
                let mut socket = reader.into_inner();
                match conduct {
                    Conduct::Hang => hanging.push(socket),
                    Conduct::Refuse(status) => {
                        let _ = write!(socket, "HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
                    }
                    Conduct::Tunnel(there) => tunnel(socket, there),
                }
            }
        });
        Self { address, heads, stopping, thread: Some(thread) }
    }

    fn url(&self) -> String {
        format!("http://user:pa55word@{}", self.address)
    }

    fn heads(&self) -> Vec<String> {
        self.heads.lock().clone()
    }
}

impl Drop for Outbound {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Copies both ways until either side closes.
fn tunnel(mut near: TcpStream, there: SocketAddr) {
    let mut far = TcpStream::connect(there).unwrap();
    near.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").unwrap();
    let (mut from, mut to) = (near.try_clone().unwrap(), far.try_clone().unwrap());
    let copy = |from: &mut TcpStream, to: &mut TcpStream| {
        let _ = io::copy(from, to);
        let _ = to.shutdown(std::net::Shutdown::Both);
    };
    std::thread::spawn(move || copy(&mut from, &mut to));
    std::thread::spawn(move || copy(&mut far, &mut near));
}

/// A name that only the outbound proxy can make something of.
const FAR: &str = "http://upstream.test:8080";

#[test]
fn an_outbound_proxy_is_asked_to_connect_to_the_upstreams_name() {
    let standin = StandIn::start().unwrap();
    let outbound = Outbound::start(Conduct::Tunnel(standin.address()));
    for variable in ["HTTPS_PROXY", "https_proxy", "ALL_PROXY"] {
        let before = (outbound.heads().len(), standin.call_count());
        let url = outbound.url();
        let env = [(variable, url.as_str()), ("RUST_LOG", "trace")];
        let proxy = start_with(&standin, FAR, &env);
        for path in [CHAT, MESSAGES, CHAT] {
            let answer = post(&proxy, path, "{}");
            assert_eq!(answer.status, 200, "{variable}: {answer:?}");
        }
        assert_eq!(standin.call_count(), before.1 + 3);
        let heads = outbound.heads().split_off(before.0);
        // The tunnel is a connection like any other: it is kept.
        assert!((1..=2).contains(&heads.len()), "{variable}: {heads:?}");
        for head in heads {
            assert!(head.starts_with("CONNECT upstream.test:8080 HTTP/1.1\r\n"), "{head}");
            let lower = head.to_ascii_lowercase();
            assert!(lower.contains("proxy-authorization: basic dxnlcjpwytu1d29yza=="), "{head}");
            assert!(!lower.contains("bearer"), "{head}");
        }
        let call = standin.calls().pop().unwrap();
        assert_eq!(call.header("host"), Some("upstream.test:8080"));
        assert_eq!(call.header("proxy-authorization"), None);
        let log = proxy.log();
        let shown = format!("outbound=http://{}", outbound.address);
        assert!(log.contains(&shown), "{log}");
        for secret in ["pa55word", "dXNlcjpwYTU1d29yZA"] {
            assert!(!log.contains(secret), "{log}");
        }
    }
}

#[test]
fn a_refusal_of_the_outbound_proxy_is_told_as_its_own() {
    let standin = StandIn::start().unwrap();
    for status in ["407 Proxy Authentication Required", "502 Bad Gateway"] {
        let outbound = Outbound::start(Conduct::Refuse(status));
        let proxy = start_with(&standin, FAR, &[("HTTPS_PROXY", &outbound.url())]);
        let told = failures(&proxy, 502);
        assert_each_says(&told, &["outbound proxy"]);
        assert_each_says(&told, &[&status[..3]]);
        assert!(!outbound.heads().is_empty());
        for text in told.iter().chain([&proxy.log()]) {
            assert!(!text.contains("pa55word") && !text.contains("user:"), "{text}");
        }
    }
    assert_eq!(standin.call_count(), 0);
}

#[test]
fn an_outbound_proxy_that_hangs_is_given_up_after_the_connect_timeout() {
    let standin = StandIn::start().unwrap();
    let outbound = Outbound::start(Conduct::Hang);
    let url = outbound.url();
    let env = [("HTTPS_PROXY", url.as_str()), ("CONNECT_TIMEOUT_SECONDS", "1")];
    let proxy = start_with(&standin, FAR, &env);
    assert_each_says(&failures(&proxy, 504), &["connect"]);
    assert_eq!(outbound.heads().len(), 2, "a time-out was repeated");
}

#[test]
fn an_outbound_proxy_that_is_down_is_502() {
    let standin = StandIn::start().unwrap();
    let closed = ClosedPort::new();
    for scheme in ["http", "socks5", "socks5h", "socks4"] {
        let url = format!("{scheme}://user:pa55word@127.0.0.1:{}", closed.port);
        // TEST-NET-1: an address that needs no resolving and that nobody has.
        let proxy = start_with(&standin, "http://192.0.2.1:81", &[("ALL_PROXY", &url)]);
        let told = failures(&proxy, 502);
        assert_each_says(&told, &["refused"]);
        let log = proxy.log();
        assert!(!log.contains("panic") && !log.contains("pa55word"), "{log}");
        assert!(log.contains(&format!("outbound={scheme}://127.0.0.1:{}", closed.port)), "{log}");
    }
}

#[test]
fn loopback_is_never_reached_through_an_outbound_proxy() {
    // On every address, 127.1.2.3 among them.
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    let standin = StandIn::start_on(listener, plain()).unwrap();
    let closed = ClosedPort::new();
    let port = standin.address().port();
    for scheme in ["http", "socks5"] {
        let url = format!("{scheme}://127.0.0.1:{}", closed.port);
        for host in ["127.0.0.1", "127.1.2.3", "localhost"] {
            let origin = format!("http://{host}:{port}");
            let env = ["ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY"].map(|name| (name, url.as_str()));
            let proxy = start_with(&standin, &origin, &env);
            let answer = post(&proxy, CHAT, "{}");
            assert_eq!(answer.status, 200, "{scheme} {origin}: {answer:?}");
        }
    }
}

#[test]
fn no_proxy_names_hosts_that_are_reached_directly() {
    let standin = StandIn::start().unwrap();
    let outbound = Outbound::start(Conduct::Tunnel(standin.address()));
    let url = outbound.url();
    for (no_proxy, is_direct) in [("upstream.test", true), (".test", true), ("other.test", false)] {
        let env = [
            ("HTTPS_PROXY", url.as_str()),
            ("NO_PROXY", no_proxy),
            ("CONNECT_TIMEOUT_SECONDS", "1"),
        ];
        let before = outbound.heads().len();
        let proxy = start_with(&standin, FAR, &env);
        let status = post(&proxy, CHAT, "{}").status;
        assert_eq!(outbound.heads().len() == before, is_direct, "{no_proxy}: {status}");
        // Directly there is no such name.
        assert_eq!(status == 200, !is_direct, "{no_proxy}: {status}");
    }
}

#[test]
fn an_answer_that_comes_while_the_process_stands_still_has_come_in_time() {
    let standin = StandIn::start().unwrap();
    let gate = standin.gate();
    standin.reply_once("*", "*", Reply::gated_sse(&gate, vec!["data: 1\n\n"; 2], End::Clean));
    let limit = [("UPSTREAM_TIMEOUT_SECONDS", "1"), ("STREAM_IDLE_TIMEOUT_SECONDS", "1")];
    let proxy = start_with(&standin, &standin.origin(), &limit);
    let mut client = proxy.connect();
    client.send("POST", CHAT, &[AUTH], br#"{"stream":true}"#);
    gate.release();
    client.read_head().unwrap();
    assert!(client.read_chunk().unwrap().is_some());

    proxy.freeze();
    gate.release();
    // The limit passes.
    assert!(!standin.wait_closed(0, Duration::from_millis(1500)));
    proxy.thaw();
    assert_eq!(client.read_body().unwrap(), b"data: 1\n\n");
}
