//! The calendar is set while the proxy runs, by libfaketime. Its monotonic clock goes on: that is
//! what setting a clock does.

use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use dashscope_proxy::standin::{End, Gate, StandIn};

use super::vitals::processor_time;
use super::{mortal, rest};
use crate::envelope::CHAT;
use crate::harness::{AUTH, Answer, Builder, Client, LIMIT, Proxy, get, post};
use crate::stopping::{idle_connection, stream_in_flight};

const BODY: &[u8] = br#"{"model":"any","messages":[]}"#;
const SLOTS: usize = 4;

const YEAR: i64 = 365;
/// The default cooldown.
const COOLDOWN: i64 = 30;
/// In seconds.
const DAY: u64 = 86_400;

/// The calendar of a proxy, in days from the real one.
struct Calendar(PathBuf);

impl Calendar {
    /// Puts the proxy under a calendar of its own, which is right at first.
    fn of(builder: Builder<'_>) -> (Builder<'_>, Self) {
        let calendar = Self(builder.folder().join("calendar"));
        calendar.set(0);
        let mut wrapper = Command::new("faketime");
        let output = wrapper.args(["-m", "-f", "+0", "printenv", "LD_PRELOAD"]).output().unwrap();
        let library = String::from_utf8(output.stdout).unwrap();
        let builder = builder
            .env("LD_PRELOAD", library.trim())
            .env("FAKETIME_TIMESTAMP_FILE", calendar.0.to_str().unwrap())
            .env("FAKETIME_NO_CACHE", "1")
            // The old name and the new one.
            .env("DONT_FAKE_MONOTONIC", "1")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        (builder, calendar)
    }

    fn set(&self, days: i64) {
        let new = self.0.with_extension("new");
        std::fs::write(&new, format!("{days:+}d\n")).unwrap();
        std::fs::rename(new, &self.0).unwrap();
    }

    /// Some days after the epoch, as on a board whose clock has no battery.
    fn set_to_1970(&self) {
        let today = dashscope_proxy::clock::now().0 / 1000 / DAY;
        self.set(3 - i64::try_from(today).unwrap());
    }
}

/// What must not notice that the calendar is set.
struct Bystanders {
    idle: Client,
    stream: Client,
    events: Gate,
}

impl Bystanders {
    fn new(proxy: &Proxy<'_>, standin: &StandIn) -> Self {
        let (stream, events) = stream_in_flight(proxy, standin, End::Clean);
        Self { idle: idle_connection(proxy), stream, events }
    }

    fn check(mut self, proxy: &Proxy<'_>) {
        let before = processor_time(proxy.pid());
        rest(Duration::from_secs(2));
        let spent = processor_time(proxy.pid()) - before;
        assert!(spent < 1000, "{spent} ms of processor time in two idle seconds");
        self.events.open();
        assert_eq!(self.stream.read_body().unwrap(), b"data: 2\n\ndata: [DONE]\n\n");
        self.idle.send("GET", "/health", &[AUTH], b"");
        assert_eq!(self.idle.read_answer().unwrap().status, 200);
    }
}

fn builder(standin: &StandIn) -> (Builder<'_>, Calendar) {
    Calendar::of(mortal(Proxy::builder(standin)).keys("k1,k2").models("m1,m2"))
}

fn ask(proxy: &Proxy<'_>) -> Answer {
    post(proxy, CHAT, BODY)
}

fn exhaust_all(standin: &StandIn, proxy: &Proxy<'_>) {
    standin.set_quota("*", "*", 0);
    assert_eq!(ask(proxy).status, 503);
    standin.clear();
}

/// Nothing is left, and the first slot is back in this many days.
#[track_caller]
fn assert_closed(proxy: &Proxy<'_>, days: u64) {
    let answer = ask(proxy);
    assert_eq!((answer.status, answer.header("x-should-retry")), (503, Some("false")));
    assert_eq!(answer.header("retry-after"), None);
    let text = answer.text();
    let wait = text.split_once(", in ").unwrap().1;
    let told = |unit: &str| -> u64 {
        let before = wait.split_once(unit).map_or("0", |(before, _)| before);
        before.rsplit(' ').next().unwrap().parse().unwrap()
    };
    let begun = u64::from(told(" h") > 0 || told(" min") > 0 || told(" s") > 0);
    assert_eq!(told(" d") + begun, days, "{answer:?}");
    assert_eq!(available(proxy), 0);
}

fn available(proxy: &Proxy<'_>) -> u64 {
    let status = get(proxy, "/models/status").json();
    assert_eq!(status["models"].as_array().unwrap().len(), SLOTS);
    status["availableSlots"].as_u64().unwrap()
}

fn doubts(proxy: &Proxy<'_>) -> usize {
    proxy.log().lines().filter(|line| line.contains(" clock now=")).count()
}

#[test]
#[ignore = "needs libfaketime: tests/life/run"]
fn a_clock_set_forwards_ends_the_cooldowns_that_are_over_and_disturbs_nothing_else() {
    let standin = StandIn::start().unwrap();
    let (builder, calendar) = builder(&standin);
    let notify = builder.folder().join("notify");
    let supervisor = UnixDatagram::bind(&notify).unwrap();
    supervisor.set_read_timeout(Some(LIMIT)).unwrap();
    let mut proxy = builder
        .env("NOTIFY_SOCKET", notify.to_str().unwrap())
        .env("WATCHDOG_USEC", "3000000")
        .start();
    let bystanders = Bystanders::new(&proxy, &standin);
    exhaust_all(&standin, &proxy);
    assert_closed(&proxy, COOLDOWN as u64);

    calendar.set(COOLDOWN - 1);
    assert_closed(&proxy, 1);

    calendar.set(YEAR);
    assert_eq!(available(&proxy), SLOTS as u64);
    assert!(!proxy.log().contains(" revived "));
    assert_eq!(ask(&proxy).status, 200);
    assert!(proxy.wait_log(" revived slot=", LIMIT));
    bystanders.check(&proxy);
    // Ready, and then a sign of life each second.
    for _ in 0..4 {
        supervisor.recv(&mut [0; 1024]).expect("the watchdog is fed");
    }

    proxy.restart();
    assert_eq!((doubts(&proxy), available(&proxy)), (0, SLOTS as u64));
    assert_eq!(ask(&proxy).status, 200);
    proxy.stop();
}

#[test]
#[ignore = "needs libfaketime: tests/life/run"]
fn a_clock_set_backwards_opens_nothing_and_is_doubted_at_the_start() {
    let standin = StandIn::start().unwrap();
    let (builder, calendar) = builder(&standin);
    calendar.set(YEAR);
    let mut proxy = builder.start();
    let bystanders = Bystanders::new(&proxy, &standin);
    exhaust_all(&standin, &proxy);
    assert_closed(&proxy, COOLDOWN as u64);

    calendar.set(0);
    assert_closed(&proxy, (YEAR + COOLDOWN) as u64);
    bystanders.check(&proxy);
    let state = proxy.state()["modelState"].clone();
    proxy.restart();
    assert_eq!(doubts(&proxy), 2, "behind the file, and a cooldown that is too long");
    assert_closed(&proxy, (YEAR + COOLDOWN) as u64);
    assert_eq!(proxy.state()["modelState"], state, "nothing is corrected");

    calendar.set_to_1970();
    assert_eq!(available(&proxy), 0);
    proxy.restart();
    assert_eq!((doubts(&proxy), available(&proxy)), (2, 0));
    assert_eq!(ask(&proxy).status, 503);
    assert_eq!(proxy.state()["modelState"], state, "nothing is corrected");

    calendar.set(YEAR + COOLDOWN + 1);
    assert_eq!(available(&proxy), SLOTS as u64);
    assert_eq!(ask(&proxy).status, 200);
    proxy.restart();
    assert_eq!((doubts(&proxy), available(&proxy)), (0, SLOTS as u64));
    proxy.stop();
}
