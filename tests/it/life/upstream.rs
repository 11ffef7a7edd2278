//! The upstream of the mixed load: a stand-in that can be restarted on its port, and in which every
//! request brings its own answers along. Its nonce, in a header, names them.

use std::collections::{HashMap, VecDeque};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dashscope_proxy::standin::{Call, Reply, StandIn, plain};
use parking_lot::Mutex;

use super::rest;

/// What names a request.
pub(super) const NONCE: &str = "x-nonce";

/// What a body says before the proxy has put a model into it.
pub(super) const MODEL: &str = r#""model":"any""#;

/// How long it is away.
const AWAY: Duration = Duration::from_millis(1500);

pub(super) struct Upstream {
    address: SocketAddr,
    standin: Mutex<Option<StandIn>>,
    /// Odd while it is away.
    turns: AtomicUsize,
    plans: Arc<Plans>,
}

/// What is to happen upstream to requests in flight, by nonce.
#[derive(Default)]
struct Plans {
    plans: Mutex<HashMap<String, Plan>>,
    faults: Mutex<Vec<String>>,
}

#[derive(Default)]
pub(super) struct Plan {
    /// The body that the client sends.
    pub(super) body: Vec<u8>,
    /// An answer for each attempt; the last one for all that follow.
    pub(super) replies: VecDeque<Reply>,
    /// The DashScope keys with which it came.
    pub(super) keys: Vec<String>,
}

impl Upstream {
    pub(super) fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let plans = Arc::<Plans>::default();
        let standin = Mutex::new(Some(stand_in(listener, &plans)));
        Self { address, standin, turns: AtomicUsize::new(0), plans }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Cuts every connection, stays away for a while, and comes back.
    pub(super) fn restart(&self) {
        let mut standin = self.standin.lock();
        self.turns.fetch_add(1, Ordering::SeqCst);
        drop(standin.take());
        rest(AWAY);
        *standin = Some(stand_in(TcpListener::bind(self.address).unwrap(), &self.plans));
        self.turns.fetch_add(1, Ordering::SeqCst);
    }

    /// Grows with every end and every start.
    pub(super) fn turns(&self) -> usize {
        self.turns.load(Ordering::SeqCst)
    }

    pub(super) fn plan(&self, nonce: &str, plan: Plan) {
        self.plans.plans.lock().insert(nonce.to_owned(), plan);
    }

    /// Forgets the answers to a request that is over.
    pub(super) fn done(&self, nonce: &str) -> Plan {
        self.plans.plans.lock().remove(nonce).expect("a request in flight")
    }

    /// What arrived otherwise than it was sent, so far.
    pub(super) fn faults(&self) -> Vec<String> {
        std::mem::take(&mut self.plans.faults.lock())
    }
}

fn stand_in(listener: TcpListener, plans: &Arc<Plans>) -> StandIn {
    let standin = StandIn::start_on(listener, plain()).unwrap();
    standin.keep_calls(false);
    let plans = Arc::clone(plans);
    standin.decide(move |call| plans.decide(call));
    standin
}

impl Plans {
    fn decide(&self, call: &Call) -> Option<Reply> {
        let mut plans = self.plans.lock();
        // None: the client has left, and the call was on its way.
        let plan = plans.get_mut(call.header(NONCE)?)?;
        if !is_sent(&plan.body, call) {
            let start = String::from_utf8_lossy(&call.body[..call.body.len().min(200)]);
            let fault = format!("another body arrived: {} {start}", call.target);
            self.faults.lock().push(fault);
        }
        plan.keys.extend(call.key.clone());
        match plan.replies.len() {
            0 | 1 => plan.replies.front().cloned(),
            _ => plan.replies.pop_front(),
        }
    }
}

/// Whether the call's body is what was sent, but for the model.
fn is_sent(sent: &[u8], call: &Call) -> bool {
    let start = &sent[..sent.len().min(200)];
    let Some(at) = start.windows(MODEL.len()).position(|part| part == MODEL.as_bytes()) else {
        return call.body == sent;
    };
    let model = format!(r#""model":"{}""#, call.model.as_deref().unwrap_or_default());
    let rest = call.body.strip_prefix(&sent[..at]);
    let rest = rest.and_then(|rest| rest.strip_prefix(model.as_bytes()));
    rest == Some(&sent[at + MODEL.len()..])
}
