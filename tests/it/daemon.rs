//! The process and its surroundings: who reads its log, who started it, where its words go.
#![allow(clippy::unwrap_used, reason = "the helpers of tests panic as tests do")]

use std::fs::{self, File};
use std::io::{BufRead, BufReader, PipeReader, Read};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use dashscope_proxy::clock;
use dashscope_proxy::standin::StandIn;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::envelope::CHAT;
use crate::failover::BODY;
use crate::harness::{AUTH, Builder, Folder, LIMIT, Proxy, binary, request, run_to_exit};

/// A process that nobody reads, ended with this.
struct Unread(Child);

impl Unread {
    fn start(command: &mut Command) -> Self {
        Self(command.stdin(Stdio::null()).spawn().unwrap())
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.0.id()).unwrap()), signal).unwrap();
    }

    fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let deadline = clock::instant() + limit;
        while clock::instant() < deadline {
            if let Some(status) = self.0.try_wait().unwrap() {
                return Some(status);
            }
            std::thread::yield_now();
        }
        None
    }

    fn code(&mut self) -> Option<i32> {
        self.wait(LIMIT).and_then(|status| status.code())
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}

/// A proxy whose log goes into this; where it listens, once it does.
fn started(builder: Builder<'_>, log: impl Into<Stdio>) -> (Builder<'_>, Unread, SocketAddr) {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
    let builder = builder.env("PORT", address.port().to_string());
    let mut process = Unread::start(builder.command().stderr(log));
    let deadline = clock::instant() + LIMIT;
    while std::net::TcpStream::connect(address).is_err() {
        assert!(process.0.try_wait().unwrap().is_none() && clock::instant() < deadline);
    }
    (builder, process, address)
}

/// A pipe that holds all it can.
fn full_pipe() -> (PipeReader, std::io::PipeWriter) {
    let (reader, writer) = std::io::pipe().unwrap();
    let (mut writer, size) = (writer, 1 << 20);
    nix::fcntl::fcntl(&writer, nix::fcntl::FcntlArg::F_SETPIPE_SZ(4096)).unwrap();
    let flags = |flags| nix::fcntl::FcntlArg::F_SETFL(flags);
    nix::fcntl::fcntl(&writer, flags(nix::fcntl::OFlag::O_NONBLOCK)).unwrap();
    let _ = std::io::Write::write_all(&mut writer, &vec![b'x'; size]);
    nix::fcntl::fcntl(&writer, flags(nix::fcntl::OFlag::empty())).unwrap();
    (reader, writer)
}

#[test]
fn a_log_that_nobody_reads_keeps_no_request_and_no_stop_waiting() {
    let standin = StandIn::start().unwrap();
    let (_reader, writer) = full_pipe();
    let (_builder, mut process, address) = started(Proxy::builder(&standin), writer);
    for _ in 0..1_500 {
        assert_eq!(request(address, "POST", CHAT, &[AUTH], BODY).status, 200);
    }
    process.signal(Signal::SIGTERM);
    assert_eq!(process.code(), Some(0));
}

#[test]
fn what_was_dropped_is_told_once_somebody_reads_and_the_last_lines_get_out() {
    let standin = StandIn::start().unwrap();
    let (reader, writer) = full_pipe();
    let (_builder, mut process, address) = started(Proxy::builder(&standin), writer);
    // More than may wait in memory.
    let (path, served) = (format!("/v1/{}", "x".repeat(400)), 11_000);
    for _ in 0..served {
        request(address, "GET", &path, &[AUTH], "");
    }
    process.signal(Signal::SIGTERM);
    let lines: Vec<String> = BufReader::new(reader).lines().map_while(Result::ok).collect();
    assert_eq!(process.code(), Some(0));
    let told = lines.iter().filter(|line| line.contains(" request id=")).count();
    let dropped = lines.iter().filter_map(|line| line.split_once(" log dropped="));
    let dropped =
        dropped.map(|(_, rest)| rest.split(':').next().unwrap().parse::<usize>().unwrap());
    let dropped: usize = dropped.sum();
    assert!(told < served && told + dropped >= served, "{told} + {dropped} of {served}");
    assert!(lines.last().unwrap().contains("stopped state_written=true"), "{:?}", lines.last());
}

#[test]
fn where_the_reader_keeps_up_no_line_is_missing() {
    let standin = StandIn::start().unwrap();
    let mut proxy = Proxy::start(&standin);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..100 {
                    assert_eq!(request(proxy.address(), "POST", CHAT, &[AUTH], BODY).status, 200);
                }
            });
        }
    });
    proxy.stop();
    assert_eq!(proxy.log().matches(" request id=").count(), 800);
    assert!(!proxy.log().contains("log dropped="));
}

#[test]
fn a_start_that_fails_ends_although_nobody_reads_why() {
    let (_reader, writer) = full_pipe();
    let folder = Folder::new();
    let mut command = binary();
    command.env_clear().current_dir(folder.path()).stderr(writer);
    assert_eq!(Unread::start(&mut command).code(), Some(78));
}

#[test]
fn a_supervisor_that_does_not_listen_is_not_waited_for() {
    let standin = StandIn::start().unwrap();
    let builder = Proxy::builder(&standin);
    let notify = builder.folder().join("notify");
    let supervisor = UnixDatagram::bind(&notify).unwrap();
    let own = UnixDatagram::unbound().unwrap();
    own.set_nonblocking(true).unwrap();
    while own.send_to(b"x", &notify).is_ok() {}
    let mut proxy = builder.env("NOTIFY_SOCKET", notify.to_str().unwrap()).start();
    proxy.stop();
    drop(supervisor);
}

/// Runs the binary with these signals ignored, as `nohup` and a shell's `&` do.
fn ignoring<'a>(builder: Builder<'a>, signals: &str) -> Builder<'a> {
    let script = format!("trap '' {signals}; exec \"$0\" \"$@\"");
    builder.under(&["sh", "-c", &script])
}

#[test]
fn a_signal_that_was_ignored_at_the_start_stays_ignored() {
    let standin = StandIn::start().unwrap();
    for (name, signal) in
        [("HUP", Signal::SIGHUP), ("INT", Signal::SIGINT), ("TERM", Signal::SIGTERM)]
    {
        let mut proxy = ignoring(Proxy::builder(&standin), name).start();
        for _ in 0..3 {
            proxy.signal(signal);
        }
        let other = if signal == Signal::SIGTERM { Signal::SIGHUP } else { Signal::SIGTERM };
        assert_eq!(request(proxy.address(), "POST", CHAT, &[AUTH], BODY).status, 200);
        assert!(!proxy.log().contains("stopping"), "{name}: {}", proxy.log());
        // One that was not ignored is heard.
        proxy.signal(other);
        assert_eq!(proxy.wait_exit(LIMIT).and_then(|status| status.code()), Some(0), "{name}");
    }
    let mut proxy = Proxy::start(&standin);
    proxy.signal(Signal::SIGHUP);
    assert_eq!(proxy.wait_exit(LIMIT).and_then(|status| status.code()), Some(0));
}

#[test]
fn a_command_that_cannot_say_it_all_ends_with_74_and_without_a_panic() {
    let standin = StandIn::start().unwrap();
    let builder = Proxy::builder(&standin);
    let full = || File::options().write(true).open("/dev/full").unwrap();
    for args in [
        &["--help"][..],
        &["--version"],
        &["status"],
        &["status", "--json"],
        &["check"],
        &["disable", "--all"],
        &["demo"],
    ] {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let mut command = builder.command();
        let mut process = Unread::start(command.args(args).stdout(full()).stderr(writer));
        drop(command);
        assert_eq!(process.code(), Some(74), "{args:?}");
        let mut told = String::new();
        reader.read_to_string(&mut told).unwrap();
        assert!(told.contains("failed to write to standard output"), "{args:?}: {told}");
        assert!(!told.contains("panic"), "{told}");
    }
    // Why it was not done counts more than that it was not said; nor does it matter where to.
    for (args, code) in [(&["--nonsense"][..], 64), (&["reset", "--key=9", "--json"], 64)] {
        let mut command = builder.command();
        let mut process = Unread::start(command.args(args).stdout(full()).stderr(full()));
        assert_eq!(process.code(), Some(code), "{args:?}");
    }
}

#[test]
fn a_reader_who_has_seen_enough_is_no_failure() {
    let standin = StandIn::start().unwrap();
    let builder = Proxy::builder(&standin);
    for args in [&["--help"][..], &["--version"], &["status"], &["status", "--json"], &["check"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = builder.command();
        let mut process = Unread::start(command.args(args).stdout(writer));
        assert_eq!(process.code(), Some(0), "{args:?}");
    }
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let (mut log, stderr) = std::io::pipe().map(|(log, to)| (BufReader::new(log), to)).unwrap();
    let folder = Folder::new();
    let mut command = binary();
    command.env_clear().env("TMPDIR", folder.path()).arg("demo").current_dir(folder.path());
    let mut demo = Unread::start(command.stdout(writer).stderr(stderr));
    drop(command);
    let mut line = String::new();
    while !line.contains(" request id=3") {
        line.clear();
        assert!(log.read_line(&mut line).unwrap() > 0, "the demo serves on");
    }
    demo.signal(Signal::SIGTERM);
    assert_eq!(demo.code(), Some(0));
}

#[test]
fn no_core_is_left_of_what_reads_keys() {
    let limit = |id: u32| {
        let limits = fs::read_to_string(format!("/proc/{id}/limits")).unwrap();
        let line = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
        line.split_whitespace().filter(|word| *word == "0").count()
    };
    let standin = StandIn::start().unwrap();
    let proxy = Proxy::start(&standin);
    assert_eq!(limit(proxy.pid()), 2);
    // It takes the connection, and keeps the command waiting for an answer.
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = silent.local_addr().unwrap().port().to_string();
    for args in [&["status"][..], &["reset", "--all"]] {
        let builder = Proxy::builder(&standin).env("PORT", port.as_str());
        let command = Unread::start(builder.command().args(args).stderr(Stdio::null()));
        let _taken = silent.accept().unwrap();
        assert_eq!(limit(command.0.id()), 2, "{args:?}");
    }
}

#[test]
fn the_example_with_its_placeholders_is_refused() {
    let folder = Folder::new();
    let example = include_str!("../../.env.example");
    let own = example.replace("=replace-me-with-a-long-random-key", "=a-key-of-my-own-0123456789");
    let last = own.replace("sk-replace-me-1,", "sk-my-own,");
    for (text, named) in [
        (example.to_owned(), &["PROXY_API_KEY", "item 1", "item 2"][..]),
        (own, &["item 1", "item 2"]),
        (last, &["item 2"]),
        (include_str!("../../systemd/dashscope-proxy.env.example").to_owned(), &["PROXY_API_KEY"]),
    ] {
        folder.write("env", &text);
        let path = folder.path().join("env").display().to_string();
        for command in [&[][..], &["check"], &["status"]] {
            let args = [command, &["--env-file", &path]].concat();
            let output = run_to_exit(&[], &args);
            let told = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(78), "{args:?}: {told}");
            for name in named.iter().chain(&["placeholder"]) {
                assert!(told.contains(name), "{name} is missing in {told}");
            }
            assert!(!told.contains("replace-me"), "a value is shown: {told}");
        }
    }
}
