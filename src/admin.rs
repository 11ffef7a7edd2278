//! The pages of our own: what there is, how the pool stands, which models it has.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::clock::{self, Timestamp};
use crate::error::ProxyError;
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
    ///
    /// # Errors
    /// When there is no such model.
    pub fn page(&self, local: &Local, protocol: Protocol) -> Result<(Head, Vec<u8>), ProxyError> {
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
        ],
    })
}
