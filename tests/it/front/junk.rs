//! What is no HTTP/1.1, or only resembles a path of ours.

use super::*;

/// The beginning of a TLS 1.2 ClientHello.
const TLS_HELLO: &[u8] = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\x4f\x0a\x0d\x0a\xffrandom";

const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x12\x04\0\0\0\0\0";

fn asked(target: &str) -> String {
    let (name, value) = AUTH;
    let length = BODY.len();
    let body = String::from_utf8_lossy(BODY);
    format!(
        "POST {target} HTTP/1.1\r\nhost: a\r\n{name}: {value}\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}

/// A request with the key, every line end a bare LF.
fn bare_lf() -> String {
    asked(CHAT).replace("\r\n", "\n")
}

#[test]
fn junk_is_refused_or_let_go_and_never_forwarded() {
    let standin = StandIn::start().unwrap();
    let proxy = quiet(&standin).env("CLIENT_TIMEOUT_SECONDS", "1").start();
    let honest = asked(CHAT);
    let with = |from: &str, to: &str| honest.replacen(from, to, 1).into_bytes();
    let junk: Vec<Vec<u8>> = vec![
        TLS_HELLO.to_vec(),
        HTTP2_PREFACE.to_vec(),
        [HTTP2_PREFACE, honest.as_bytes()].concat(),
        bare_lf().into_bytes(),
        format!("{}\r\n\r\n{honest}", bare_lf()).into_bytes(),
        b"GET /health HTTP/1.1\nhost: a\n\n".to_vec(),
        vec![0; 100],
        vec![0xff; 5_000],
        b"\r\n\r\n\r\n\r\n".to_vec(),
        b"GET /health\r\n\r\n".to_vec(),
        b"GET\r\n\r\n".to_vec(),
        b"GET /health HTTP/1.1\r\nno colon\r\n\r\n".to_vec(),
        b"GET /health HTTP/1.1\r\nx: \xc3\xa4\r\n\r\n".to_vec(),
        b"GET /health HTTP/9.9\r\nhost: a\r\n\r\n".to_vec(),
        b"SSH-2.0-OpenSSH_9.6\r\n".to_vec(),
        with("HTTP/1.1", "HTTP/2.0"),
        with("HTTP/1.1", "HTTP/3.0"),
        with("host: a", "expect: the unexpected"),
    ];
    let mut clients: Vec<Client> = junk
        .iter()
        .map(|bytes| {
            let mut client = proxy.connect();
            client.send_raw(bytes).unwrap();
            client
        })
        .collect();
    let left = still_open(&mut clients, LIMIT);
    assert_eq!(left, 0, "connections that stay open");
    assert_serves(&proxy);
    assert_eq!(standin.slots(), ["k1/m1"]);
}

#[test]
fn what_only_resembles_a_known_path_is_not_forwarded() {
    let standin = StandIn::start().unwrap();
    let proxy = quiet(&standin).start();
    for target in [
        "*",
        "",
        "?",
        "//v1/chat/completions",
        "/v1//chat/completions",
        "/v1/chat/completions/",
        "/v1/%63hat/completions",
        "/v1/chat%2Fcompletions",
        "/v1%2fchat%2fcompletions",
        "/v1/%2e%2e/v1/chat/completions",
        "/v1/x/../chat/completions",
        "/./v1/chat/completions",
        "/v1/chat/completions/..%2f..%2f..%2fapi/v1/tasks",
        "/v1/chat/completions;x=y",
        "/v1/chat/completions#fragment",
        "/v1/chat/completions%00",
        "/v1/chat/completions\0",
        "\\v1\\chat\\completions",
        "/V1/CHAT/COMPLETIONS",
        "http://dashscope.aliyuncs.com",
        "http://dashscope.aliyuncs.com/api/v1/tasks/%2e%2e",
        "http://dashscope.aliyuncs.com//v1/chat/completions",
        "ftp://dashscope.aliyuncs.com/v1/chat/completions",
        "dashscope.aliyuncs.com:443",
    ] {
        let mut client = proxy.connect();
        client.send_raw(asked(target).as_bytes()).unwrap();
        let status = client.read_head().map(|head| head.status);
        assert!(matches!(status, Ok(400 | 404 | 405)), "{target:?}: {status:?}");
    }
    for (method, target) in
        [("CONNECT", "dashscope.aliyuncs.com:443"), ("TRACE", CHAT), ("PO\0ST", CHAT)]
    {
        let status = request(proxy.address(), method, target, &[AUTH], b"").status;
        assert!(matches!(status, 404 | 405), "{method}: {status}");
    }
    assert_eq!(standin.call_count(), 0);
}

#[test]
fn a_nul_in_a_header_never_gets_upstream() {
    let standin = StandIn::start().unwrap();
    let proxy = quiet(&standin).start();
    for value in ["\0", "a\0b", "a\u{1}b"] {
        let status = request(proxy.address(), "POST", CHAT, &[AUTH, ("x-nul", value)], BODY).status;
        assert!(matches!(status, 200 | 400), "{value:?}: {status}");
    }
    assert!(standin.calls().iter().all(|call| call.header("x-nul").is_none()));
}

#[test]
fn an_absolute_target_never_chooses_the_upstream() {
    let standin = StandIn::start().unwrap();
    let elsewhere = StandIn::start().unwrap();
    let proxy = quiet(&standin).start();
    let target = format!("{}{CHAT}?a=b", elsewhere.origin());
    assert_eq!(request(proxy.address(), "POST", &target, &[AUTH], BODY).status, 200);
    assert_eq!(elsewhere.connections(), 0);
    assert_eq!(standin.calls()[0].target, "/compatible-mode/v1/chat/completions?a=b");
}

#[test]
fn nothing_of_junk_stays_behind() {
    let standin = StandIn::start().unwrap();
    let proxy = quiet(&standin).env("CLIENT_TIMEOUT_SECONDS", "1").start();
    assert_serves(&proxy);
    let before = (descriptors(&proxy), threads(&proxy));
    let foreign = asked(CHAT).replace("HTTP/1.1", "HTTP/2.0");
    for junk in [HTTP2_PREFACE, TLS_HELLO, foreign.as_bytes(), &[0; 100]] {
        for _ in 0..30 {
            proxy.connect().send_raw(junk).unwrap();
        }
    }
    let gone = eventually(LIMIT, || descriptors(&proxy) <= before.0 + 20);
    assert!(gone, "{} descriptors were open, now {}", before.0, descriptors(&proxy));
    assert_serves(&proxy);
}

#[test]
fn a_foreign_version_with_an_absurd_length_does_not_end_the_process() {
    let standin = StandIn::start().unwrap();
    let proxy = quiet(&standin).env("CLIENT_TIMEOUT_SECONDS", "1").start();
    for version in ["HTTP/2.0", "HTTP/3.0", "HTTP/1.0", "HTTP/0.9"] {
        for length in ["30000000000", "140737488355327", "4611686018427387904"] {
            let packet = format!("GET /health {version}\r\ncontent-length: {length}\r\n\r\nx");
            let mut client = proxy.connect();
            client.send_raw(packet.as_bytes()).unwrap();
            let _ = client.socket().shutdown(std::net::Shutdown::Write);
            assert!(read_to_end(&client).is_some(), "{version} {length}: it stays open");
        }
    }
    assert_serves(&proxy);
}

#[test]
fn a_request_names_its_host_once_and_plainly() {
    let standin = StandIn::start().unwrap();
    let proxy = quiet(&standin).start();
    let asked = |version: &str, hosts: &[&str]| {
        let hosts: String = hosts.iter().map(|host| format!("{host}\r\n")).collect();
        let mut client = proxy.connect();
        let request = format!("GET /health HTTP/{version}\r\n{hosts}connection: close\r\n\r\n");
        client.send_raw(request.as_bytes()).unwrap();
        statuses(&read_to_end(&client).expect("an end"))
    };
    for hosts in [&["host: a"][..], &["Host: [::1]:80"], &["HOST:"]] {
        assert_eq!(asked("1.1", hosts), [200], "{hosts:?}");
    }
    assert_eq!(asked("1.0", &[]), [200]);
    for hosts in [&[][..], &["host: a", "host: a"], &["host: a", "Host: b"], &["host: a b"]] {
        assert_eq!(asked("1.1", hosts), [400], "{hosts:?}");
    }
    assert_eq!(asked("1.0", &["host: a", "host: b"]), [400]);
}
