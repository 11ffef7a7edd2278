//! What Prometheus is told: the only user of its library.
//!
//! Labels are key labels, configured models, routes and words of ours: never a secret and never
//! a client's text.

use std::fmt;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::encoding::prometheus_text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

/// The content type of [`Metrics::render`].
pub(crate) const CONTENT_TYPE: &str = prometheus_text::CONTENT_TYPE;

type Labels = Vec<(&'static str, String)>;

/// Everything that is counted.
pub(crate) struct Metrics {
    registry: Mutex<Registry>,
    requests: Family<Labels, Counter>,
    attempts: Family<Labels, Counter>,
    tokens: Family<Labels, Counter>,
    estimated: Family<Labels, Counter>,
    first_byte: Histogram,
    total: Histogram,
    slots: Family<Labels, Gauge>,
    limits: Family<Labels, Gauge>,
    workers: Family<Labels, Gauge>,
    queue: Gauge,
    connections: Gauge,
    state_writes: Counter,
    state_failures: Counter,
    uptime: Gauge,
}

/// How things stand at the moment of a scrape.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Standings {
    /// Slots by the name of their standing.
    pub slots: Vec<(&'static str, usize)>,
    /// What models are known not to take: the model, the kind, and how many there are.
    pub limits: Vec<(String, &'static str, usize)>,
    /// The front.
    pub load: Load,
    /// Writes of the state file that reached the disk, and that did not.
    pub state_writes: (u64, u64),
    /// How long the process has run.
    pub uptime: Duration,
}

/// Tokens that an answer took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spent {
    /// In, as it said.
    pub input: u64,
    /// Out, as it said.
    pub output: u64,
    /// Beyond that, by estimate.
    pub estimated: u64,
}

/// How busy the front is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    /// How many workers there are.
    pub workers: usize,
    /// How many of them serve.
    pub busy: usize,
    /// How many requests wait for one.
    pub queued: usize,
    /// How many connections are known.
    pub connections: usize,
}

/// Nothing counted yet.
impl Default for Metrics {
    fn default() -> Self {
        // 5 ms to 80 s for the first byte, and to 20 min for a whole answer.
        let first_byte = Histogram::new(exponential_buckets(0.005, 2.0, 15));
        let total = Histogram::new(exponential_buckets(0.01, 2.0, 18));
        let metrics = Self {
            registry: Mutex::new(Registry::with_prefix("dashscope_proxy")),
            requests: Family::default(),
            attempts: Family::default(),
            tokens: Family::default(),
            estimated: Family::default(),
            first_byte,
            total,
            slots: Family::default(),
            limits: Family::default(),
            workers: Family::default(),
            queue: Gauge::default(),
            connections: Gauge::default(),
            state_writes: Counter::default(),
            state_failures: Counter::default(),
            uptime: Gauge::default(),
        };
        metrics.register();
        metrics
    }
}

impl Metrics {
    #[rustfmt::skip]
    fn register(&self) {
        let mut registry = self.registry.lock();
        registry.register("requests", "Requests answered, by route, status and verdict", self.requests.clone());
        registry.register("upstream_attempts", "Calls to DashScope, by key label, model and verdict", self.attempts.clone());
        registry.register("tokens", "Tokens that answers said they used", self.tokens.clone());
        registry.register("estimated_tokens", "The most tokens of answers that did not say, or not to their end", self.estimated.clone());
        registry.register("first_byte_seconds", "From the request's head to the first byte of its answer", self.first_byte.clone());
        registry.register("request_seconds", "From the request's head to the end of its answer", self.total.clone());
        registry.register("slots", "Slots by how they stand", self.slots.clone());
        registry.register("limits", "What models are known not to take, by model and kind", self.limits.clone());
        registry.register("workers", "Workers by what they do", self.workers.clone());
        registry.register("queued_requests", "Requests that wait for a worker", self.queue.clone());
        registry.register("connections", "Client connections", self.connections.clone());
        registry.register("state_writes", "Writes of the state file that reached the disk", self.state_writes.clone());
        registry.register("state_write_failures", "Writes of the state file that did not", self.state_failures.clone());
        registry.register("uptime_seconds", "How long the process has run", self.uptime.clone());
        let build: Family<Labels, Gauge> = Family::default();
        build.get_or_create(&vec![("version", env!("CARGO_PKG_VERSION").to_owned())]).set(1);
        registry.register("build_info", "The running version", build);
    }

    /// A request has been answered.
    pub(crate) fn request(&self, route: &str, status: u16, verdict: &str, total: Duration) {
        let labels = vec![
            ("route", route.to_owned()),
            ("status", status.to_string()),
            ("verdict", verdict.to_owned()),
        ];
        self.requests.get_or_create(&labels).inc();
        self.total.observe(total.as_secs_f64());
    }

    /// The first byte of an answer has left.
    pub(crate) fn first_byte(&self, after: Duration) {
        self.first_byte.observe(after.as_secs_f64());
    }

    /// A call upstream has been judged, or has failed.
    pub(crate) fn attempt(&self, key: &str, model: &str, verdict: &str) {
        let labels = vec![
            ("key", key.to_owned()),
            ("model", model.to_owned()),
            ("verdict", verdict.to_owned()),
        ];
        self.attempts.get_or_create(&labels).inc();
    }

    /// An answer has been counted.
    pub(crate) fn used(&self, key: &str, model: &str, spent: Spent) {
        let slot = vec![("key", key.to_owned()), ("model", model.to_owned())];
        for (direction, count) in [("input", spent.input), ("output", spent.output)] {
            let mut labels = slot.clone();
            labels.push(("direction", direction.to_owned()));
            self.tokens.get_or_create(&labels).inc_by(count);
        }
        self.estimated.get_or_create(&slot).inc_by(spent.estimated);
    }

    /// The text that Prometheus scrapes.
    pub(crate) fn render(&self, standings: &Standings) -> String {
        for (standing, count) in &standings.slots {
            set(&self.slots.get_or_create(&vec![("state", (*standing).to_owned())]), *count);
        }
        // What has ended is gone.
        self.limits.clear();
        for (model, kind, count) in &standings.limits {
            let labels = vec![("model", model.clone()), ("kind", (*kind).to_owned())];
            set(&self.limits.get_or_create(&labels), *count);
        }
        let Load { workers, busy, queued, connections } = standings.load;
        let workers_that = |what: &str, count| {
            set(&self.workers.get_or_create(&vec![("state", what.to_owned())]), count);
        };
        workers_that("busy", busy);
        workers_that("idle", workers.saturating_sub(busy));
        set(&self.queue, queued);
        set(&self.connections, connections);
        overwrite(&self.state_writes, standings.state_writes.0);
        overwrite(&self.state_failures, standings.state_writes.1);
        self.uptime.set(i64::try_from(standings.uptime.as_secs()).unwrap_or(i64::MAX));
        let mut text = String::new();
        prometheus_text::encode(&mut text, &self.registry.lock())
            .expect("a String takes everything that is written to it");
        text
    }
}

fn set(gauge: &Gauge<i64, AtomicI64>, count: usize) {
    gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
}

/// For a number that is counted elsewhere.
fn overwrite(counter: &Counter<u64, AtomicU64>, count: u64) {
    counter.inner().store(count, Ordering::Relaxed);
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_counted_is_told() {
        let metrics = Metrics::default();
        metrics.request("/v1/messages", 200, "success", Duration::from_millis(20));
        metrics.first_byte(Duration::from_millis(10));
        metrics.attempt("abc", "m1", "quota_exhausted");
        metrics.used("abc", "m1", Spent { input: 5, output: 7, estimated: 11 });
        let load = Load { workers: 4, busy: 1, queued: 0, connections: 2 };
        let text = metrics.render(&Standings {
            slots: vec![("available", 5), ("cooling", 1)],
            limits: vec![("m1".to_owned(), "max_output", 2)],
            load,
            state_writes: (3, 1),
            uptime: Duration::from_secs(9),
        });
        for line in [
            r#"dashscope_proxy_requests_total{route="/v1/messages",status="200",verdict="success"} 1"#,
            r#"dashscope_proxy_upstream_attempts_total{key="abc",model="m1",verdict="quota_exhausted"} 1"#,
            r#"dashscope_proxy_tokens_total{key="abc",model="m1",direction="output"} 7"#,
            r#"dashscope_proxy_estimated_tokens_total{key="abc",model="m1"} 11"#,
            r#"dashscope_proxy_slots{state="cooling"} 1"#,
            r#"dashscope_proxy_limits{model="m1",kind="max_output"} 2"#,
            r#"dashscope_proxy_workers{state="idle"} 3"#,
            "dashscope_proxy_state_writes_total 3",
            "dashscope_proxy_state_write_failures_total 1",
            "dashscope_proxy_first_byte_seconds_count 1",
            "dashscope_proxy_uptime_seconds 9",
        ] {
            assert!(text.lines().any(|told| told == line), "{line}\n{text}");
        }
        let text = metrics.render(&Standings::default());
        assert!(!text.contains("max_output"), "what has ended is gone\n{text}");
    }
}
