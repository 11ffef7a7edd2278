//! The pages of our own: what there is, how the pool stands, which models it has, and what a
//! person may change of it.

mod page;
pub(crate) mod status;
pub(crate) mod steering;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use http::header::{CONTENT_TYPE, VARY};
use http::{HeaderMap, HeaderValue};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::clock::{self, Timestamp};
use crate::error::ProxyError;
use crate::metrics::{self, Load, Metrics, Standings};
use crate::policy::route::{Local, Protocol};
use crate::policy::scheduler::{Scheduler, Standing};
use crate::relay::Head;
use crate::store::Store;

/// Tells how busy the front is.
struct LoadTeller(Box<dyn Fn() -> Load + Send + Sync>);

impl fmt::Debug for LoadTeller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LoadTeller")
    }
}

/// What the pages are made from.
#[derive(Debug)]
pub(crate) struct Admin {
    scheduler: Arc<Mutex<Scheduler>>,
    store: Arc<Store>,
    started: Timestamp,
    running_since: Instant,
    metrics: Arc<Metrics>,
    /// How busy the front is; it is told once the front stands.
    load: OnceLock<LoadTeller>,
    /// How many slots were available when everything known was on disk.
    available: AtomicUsize,
    draining: AtomicBool,
}

impl Admin {
    /// The pages of this process.
    #[must_use]
    pub(crate) fn new(
        scheduler: Arc<Mutex<Scheduler>>,
        store: Arc<Store>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let available = scheduler.lock().available_count(clock::now());
        Self {
            scheduler,
            store,
            metrics,
            load: OnceLock::new(),
            started: clock::now(),
            running_since: clock::instant(),
            available: AtomicUsize::new(available),
            draining: AtomicBool::new(false),
        }
    }

    /// Where to ask how busy the front is.
    pub(crate) fn attach_load(&self, load: impl Fn() -> Load + Send + Sync + 'static) {
        let _ = self.load.set(LoadTeller(Box::new(load)));
    }

    fn load(&self) -> Load {
        self.load.get().map(|load| (load.0)()).unwrap_or_default()
    }

    /// From now on `/health` says that this process is about to end.
    pub(crate) fn start_draining(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// A page: its head and its body. `protocol` is the caller's.
    ///
    /// # Errors
    /// When there is no such model.
    pub(crate) fn page(
        &self,
        local: &Local,
        protocol: Protocol,
    ) -> Result<(Head, Vec<u8>), ProxyError> {
        let (status, value) = match local {
            Local::Page => return Ok(page::page()),
            Local::Metrics => return Ok(self.metrics_page()),
            Local::Index => (200, index()),
            Local::Hello => (200, json!({"ok": true})),
            Local::Health => self.health(),
            Local::Status => {
                let status = self.status();
                // Whoever reads of a cooldown may rely on it.
                let revision = self.scheduler.lock().cooled_revision();
                self.store.wait(revision);
                (200, status)
            }
            Local::Models => (200, self.models(protocol)),
            Local::Model(id) => {
                let is_known = self.scheduler.lock().pool().place_of(id).is_some();
                let model = is_known.then(|| self.model(id, protocol));
                (200, model.ok_or_else(|| ProxyError::NoSuchModel(id.clone()))?)
            }
        };
        let body = value.to_string().into_bytes();
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert("cache-control", HeaderValue::from_static("no-store"));
        if *local == Local::Index {
            headers.insert(VARY, HeaderValue::from_static("accept"));
        }
        Ok((Head { status, headers, length: Some(body.len() as u64) }, body))
    }

    /// Whoever reads of a cooldown may rely on it, and this page waits for nothing: so it tells of
    /// none before it is on disk.
    fn health(&self) -> (u16, Value) {
        let scheduler = self.scheduler.lock();
        let pool = scheduler.pool();
        if self.store.has_tried(scheduler.cooled_revision()) {
            self.available.store(scheduler.available_count(clock::now()), Ordering::Relaxed);
        }
        let draining = self.draining.load(Ordering::Relaxed);
        let mut health = json!({
            "ok": !draining,
            "totalKeys": pool.key_count(),
            "modelsPerKey": pool.model_count(),
            "totalSlots": pool.slot_count(),
            "availableSlots": self.available.load(Ordering::Relaxed),
            "stateWritable": self.store.is_writable(),
        });
        if draining {
            health["status"] = "draining".into();
        }
        (if draining { 503 } else { 200 }, health)
    }

    fn status(&self) -> Value {
        let load = self.load();
        let mut status = status::pool(&self.scheduler.lock(), clock::moment());
        status["process"] = json!({
            "version": env!("CARGO_PKG_VERSION"),
            "uptimeSeconds": self.running_since.elapsed().as_secs(),
            "workers": load.workers,
            "workersBusy": load.busy,
            "queueLength": load.queued,
            "connections": load.connections,
            "draining": self.draining.load(Ordering::Relaxed),
            "stateFile": self.store.path().display().to_string(),
            "stateWritable": self.store.is_writable(),
        });
        status
    }

    fn metrics_page(&self) -> (Head, Vec<u8>) {
        let standings = Standings {
            slots: self.slots_by_standing(),
            limits: self.limits_by_kind(),
            load: self.load(),
            state_writes: self.store.write_counts(),
            uptime: self.running_since.elapsed(),
        };
        let body = self.metrics.render(&standings).into_bytes();
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(metrics::CONTENT_TYPE));
        (Head { status: 200, headers, length: Some(body.len() as u64) }, body)
    }

    fn slots_by_standing(&self) -> Vec<(&'static str, usize)> {
        let scheduler = self.scheduler.lock();
        let views = scheduler.view(clock::moment());
        let count =
            |is: fn(&Standing) -> bool| views.iter().filter(|view| is(&view.standing)).count();
        vec![
            ("available", count(|standing| *standing == Standing::Available)),
            ("benched", count(|standing| matches!(standing, Standing::Benched(_)))),
            ("cooling", count(|standing| matches!(standing, Standing::Cooling(_)))),
            ("guarded", count(|standing| *standing == Standing::Guarded)),
            ("disabled", count(|standing| *standing == Standing::Disabled)),
        ]
    }

    fn limits_by_kind(&self) -> Vec<(String, &'static str, usize)> {
        let (scheduler, at) = (self.scheduler.lock(), clock::instant());
        let mut counts = BTreeMap::new();
        for (model, limit) in scheduler.limits(at) {
            *counts.entry((model.to_string(), limit.kind())).or_insert(0) += 1;
        }
        counts.into_iter().map(|((model, kind), count)| (model, kind, count)).collect()
    }

    fn models(&self, protocol: Protocol) -> Value {
        let pool = Arc::clone(self.scheduler.lock().pool());
        let models = pool.models();
        let list: Vec<Value> = models.iter().map(|id| self.model(id, protocol)).collect();
        match protocol {
            Protocol::OpenAi | Protocol::Native => json!({"object": "list", "data": list}),
            Protocol::Anthropic => json!({
                "data": list,
                "has_more": false,
                "first_id": models.first().map(|id| &**id),
                "last_id": models.last().map(|id| &**id),
            }),
        }
    }

    /// A model as the typed SDKs want it. What is not known is null rather than missing.
    fn model(&self, id: &str, protocol: Protocol) -> Value {
        match protocol {
            Protocol::OpenAi | Protocol::Native => json!({
                "id": id,
                "object": "model",
                "created": self.started.0 / 1000,
                "owned_by": "dashscope",
            }),
            Protocol::Anthropic => json!({
                "type": "model",
                "id": id,
                "display_name": id,
                "created_at": self.started.to_string(),
                "max_input_tokens": null,
                "max_tokens": null,
            }),
        }
    }
}

fn index() -> Value {
    json!({
        "name": env!("CARGO_PKG_NAME"),
        "version": env!("CARGO_PKG_VERSION"),
        "endpoints": [
            "POST /v1/chat/completions",
            "POST /v1/completions",
            "POST /v1/responses",
            "POST /v1/messages",
            "POST /v1/messages/count_tokens",
            "POST /v1/embeddings",
            "POST /v1/reranks",
            "POST /api/v1/services/**",
            "POST /api/v1/apps/{id}/completion",
            "POST /api/v1/tokenizer",
            "GET, POST, DELETE /v1/files/**, /v1/batches/**, /v1/responses/{id}/**",
            "GET, POST, DELETE /api/v1/tasks/**, /api/v1/files/**, /api/v1/uploads",
            "GET /v1/models",
            "GET /v1/models/{id}",
            "GET /models/status",
            "GET /health",
            "GET /metrics",
            "POST /models/reset",
            "POST /models/disable",
            "POST /models/enable",
        ],
    })
}
