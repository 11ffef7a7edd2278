//! The pages of our own: what there is, how the pool stands, which models it has.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::clock::{self, Timestamp};
use crate::policy::route::{Local, Protocol};
use crate::policy::scheduler::{Scheduler, SlotView};
use crate::relay::Head;
use crate::store::Store;

/// What the pages are made from.
#[derive(Debug)]
pub struct Admin {
    scheduler: Arc<Mutex<Scheduler>>,
    store: Arc<Store>,
    started: Timestamp,
    /// How many slots were available when everything known was on disk.
    available: AtomicUsize,
    draining: AtomicBool,
}

impl Admin {
    /// The pages of this process.
    #[must_use]
    pub fn new(scheduler: Arc<Mutex<Scheduler>>, store: Arc<Store>) -> Self {
        let available = scheduler.lock().available_count(clock::now());
        Self {
            scheduler,
            store,
            started: clock::now(),
            available: AtomicUsize::new(available),
            draining: AtomicBool::new(false),
        }
    }

    /// From now on `/health` says that this process is about to end.
    pub fn start_draining(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// A page: its head and its body. `protocol` is the caller's.
    #[must_use]
    pub fn page(&self, local: Local, protocol: Protocol) -> (Head, Vec<u8>) {
        let (status, value) = match local {
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
        };
        let body = value.to_string().into_bytes();
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert("cache-control", HeaderValue::from_static("no-store"));
        (Head { status, headers, length: Some(body.len() as u64) }, body)
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
        let scheduler = self.scheduler.lock();
        let pool = scheduler.pool();
        let now = clock::now();
        let models: Vec<Value> =
            scheduler.view(now).iter().map(|view| slot(&scheduler, view)).collect();
        let twins = scheduler.twins().iter();
        let twins: Vec<_> = twins.map(|(a, b)| [pool.label(*a), pool.label(*b)]).collect();
        json!({
            "totalKeys": pool.key_count(),
            "modelsPerKey": pool.model_count(),
            "totalSlots": pool.slot_count(),
            "availableSlots": scheduler.available_count(now),
            "sameAccount": twins,
            "models": models,
        })
    }

    fn models(&self, protocol: Protocol) -> Value {
        let pool = Arc::clone(self.scheduler.lock().pool());
        let ids = pool.models().iter().map(|id| &**id);
        match protocol {
            Protocol::OpenAi | Protocol::Native => {
                let created = self.started.0 / 1000;
                let models = ids.map(|id| {
                    json!({"id": id, "object": "model", "created": created, "owned_by": "dashscope"})
                });
                json!({"object": "list", "data": models.collect::<Vec<_>>()})
            }
            Protocol::Anthropic => {
                let created = self.started.to_string();
                let models = ids.map(|id| {
                    json!({"type": "model", "id": id, "display_name": id, "created_at": created})
                });
                json!({
                    "data": models.collect::<Vec<_>>(),
                    "has_more": false,
                    "first_id": pool.models().first().map(|id| &**id),
                    "last_id": pool.models().last().map(|id| &**id),
                })
            }
        }
    }
}

fn slot(scheduler: &Scheduler, view: &SlotView<'_>) -> Value {
    let pool = scheduler.pool();
    json!({
        "keyHash": pool.label(view.slot.key),
        "keyIndex": view.slot.key.0,
        "currentKey": view.current_key,
        "currentModel": view.current_model,
        "id": *view.slot.model,
        "available": view.available,
        "cooldownUntil": view.cooldown_until.map(|end| end.to_string()),
        "failureCount": view.failure_count,
        "lastError": view.last_error,
        "lastUsedAt": view.last_used_at.map(|at| at.to_string()),
    })
}

fn index() -> Value {
    json!({
        "name": env!("CARGO_PKG_NAME"),
        "version": env!("CARGO_PKG_VERSION"),
        "endpoints": [
            "POST /v1/chat/completions",
            "POST /v1/messages",
            "POST /api/v1/services/**",
            "GET /v1/models",
            "GET /models/status",
            "GET /health",
        ],
    })
}
