//! A system that has no descriptors or no threads left.

use std::os::unix::fs::{MetadataExt, chown};
use std::thread;

use super::*;
use dashscope_proxy::standin::{End, Gate, Reply};

/// Descriptors that the process may have.
const FEW: &str = "ulimit -n 160; exec \"$0\" \"$@\"";

/// The log tells of the library's panics.
const PANICS: &str = "info,dashscope_proxy::panics=debug";

/// How soon it serves again.
const AGAIN: Duration = Duration::from_secs(20);

/// Begins a stream that lets its second event out when it is told to.
fn stream(standin: &StandIn, proxy: &Proxy<'_>) -> (Client, Gate) {
    let gate = standin.gate();
    let events = vec!["data: 1\n\n", "data: 2\n\n"];
    standin.reply_once("*", "*", Reply::gated_sse(&gate, events, End::Clean));
    let mut client = proxy.connect();
    send_chat(&mut client);
    gate.release();
    client.read_head().expect("it begins");
    assert_eq!(client.read_chunk(), Ok(Some(b"data: 1\n\n".to_vec())));
    (client, gate)
}

fn assert_unharmed((mut client, gate): (Client, Gate)) {
    gate.release();
    assert_eq!(client.read_body().map(|body| body == b"data: 2\n\n"), Ok(true));
}

/// Each death of the accept thread was known at once, by its panic: to find it by knocking takes two
/// seconds, again and again. (A pool whose lock it held panics after it.)
fn assert_known(proxy: &Proxy<'_>) {
    let log = proxy.log();
    let mut panics = log.lines().filter(|line| line.contains("panic thread=library"));
    let unknown =
        panics.find(|line| line.contains("accept=false") && !line.contains("task_pool.rs"));
    assert_eq!(unknown, None);
}

/// Three hundred clients at once, that ask, wait a little for an answer, and leave.
fn crowd(proxy: &Proxy<'_>) {
    let mut clients: Vec<Client> = (0..300).map(|_| proxy.connect()).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        match number % 3 {
            0 => send_chat(client),
            1 => client.send("GET", "/health", &[], b""),
            _ => {}
        }
    }
    thread::scope(|scope| {
        for clients in clients.chunks_mut(100) {
            scope.spawn(|| {
                for client in clients.iter_mut().step_by(10) {
                    client.set_limit(Duration::from_millis(50));
                    let _ = client.read_answer();
                }
            });
        }
    });
}

#[test]
fn without_descriptors_it_survives_three_hundred_clients_and_serves_when_they_leave() {
    let standin = StandIn::start().unwrap();
    let proxy = quiet(&standin).env("RUST_LOG", PANICS).under(&["/bin/sh", "-c", FEW]).start();
    let stream = stream(&standin, &proxy);
    for _ in 0..3 {
        crowd(&proxy);
        assert!(serves_within(proxy.address(), AGAIN), "it does not serve any more");
        assert_serves(&proxy);
    }
    assert_unharmed(stream);
    assert_known(&proxy);
}

#[test]
fn without_threads_it_survives_three_hundred_clients_and_serves_when_they_leave() {
    if std::fs::metadata("/proc/self").unwrap().uid() != 0 {
        return skip("only root can become a user of its own, whose threads are counted alone");
    }
    let standin = StandIn::start().unwrap();
    // The limit counts every thread of a user: one that nobody else is.
    let user = 1_000_000 + std::process::id() % 1_000_000;
    let id = format!("--reuid={user}");
    let wrapper = ["setpriv", &id, "--clear-groups", "prlimit", "--nproc=60"];
    let builder = quiet(&standin)
        .env("RUST_LOG", PANICS)
        .env("WORKERS", "8")
        .env("PATH", "/usr/bin:/bin")
        .under(&wrapper);
    chown(builder.folder(), Some(user), None).unwrap();
    let proxy = builder.start();
    let stream = stream(&standin, &proxy);
    for _ in 0..3 {
        crowd(&proxy);
        assert!(threads(&proxy) <= 60);
        assert!(serves_within(proxy.address(), AGAIN), "it does not serve any more");
        assert_serves(&proxy);
    }
    assert_unharmed(stream);
    assert_known(&proxy);
}

#[expect(clippy::print_stderr, reason = "why a test did not run")]
fn skip(reason: &str) {
    eprintln!("skipped: {reason}");
}

#[test]
fn above_the_high_water_mark_the_silent_go_first_then_the_longest_idle() {
    let standin = StandIn::start().unwrap();
    let proxy = quiet(&standin).under(&["/bin/sh", "-c", FEW]).start();
    let stream = stream(&standin, &proxy);
    let idle = || {
        let mut client = proxy.connect();
        assert_eq!(health(&mut client).map(|answer| answer.status), Ok(200));
        client
    };
    let oldest = idle();
    let mut silent: Vec<Client> = (0..10).map(|_| proxy.connect()).collect();
    let mut others: Vec<Client> = Vec::new();
    let begun = clock::instant();
    while !is_over(&oldest) {
        others.push(idle());
        assert!(begun.elapsed() < LIMIT * 3, "{} are idle, and none is let go", others.len());
        // The reaper looks ten times a second, and a connection has two descriptors.
        pause(STEP * 2);
    }
    assert_eq!(still_open(&mut silent, LIMIT), 0, "silent ones outlive idle ones");
    let youngest = others.last_mut().unwrap();
    assert_eq!(health(youngest).map(|answer| answer.status), Ok(200));
    assert_unharmed(stream);
}
