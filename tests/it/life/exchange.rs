//! One request of the mixed load, and whether its answer is the right one.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dashscope_proxy::standin::{Part, Reply};
use parking_lot::Mutex;

use super::upstream::{NONCE, Plan, Upstream};
use crate::envelope::{CHAT, MESSAGES};
use crate::harness::{AUTH, Answer, Client, Cut, How};

/// Longer than anything takes whose limits are [`super::mixed`]'s.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// How an errand went, in few words that repeat themselves; or what was wrong.
pub(super) type Outcome = Result<String, String>;

/// Where the load goes, and what has become of it.
pub(super) struct Lab<'a> {
    pub(super) proxy: SocketAddr,
    pub(super) upstream: &'a Upstream,
    /// How often each errand went how.
    pub(super) tally: Mutex<BTreeMap<(&'static str, String), u64>>,
    pub(super) faults: Mutex<Vec<String>>,
    pub(super) requests: AtomicU64,
}

/// What the client is to get.
#[derive(Clone)]
pub(super) enum Want {
    /// This, to the byte.
    Whole(u16, Vec<u8>),
    /// A 200 that breaks off after this.
    Broken(Vec<u8>),
    /// An error of the proxy's own.
    Error(u16),
}

/// A request with everything that will happen to it.
pub(super) struct Ask {
    pub(super) nonce: String,
    pub(super) method: &'static str,
    pub(super) path: String,
    pub(super) body: Vec<u8>,
    pub(super) replies: Vec<Reply>,
    pub(super) wanted: Vec<Want>,
}

impl Ask {
    /// A question to the pool, which `replies` answer.
    pub(super) fn pool(nonce: &str, path: &str, replies: Vec<Reply>, wanted: Want) -> Self {
        let body = format!(r#"{{"model":"any","nonce":"{nonce}","messages":[]}}"#).into();
        let (nonce, path, wanted) = (nonce.to_owned(), path.to_owned(), vec![wanted]);
        Self { nonce, method: "POST", path, body, replies, wanted }
    }

    /// A question that is answered at once.
    pub(super) fn short(nonce: &str, path: &str) -> Self {
        Self::pool(nonce, path, vec![short(nonce)], right(nonce))
    }
}

/// A short answer, which names its request.
pub(super) fn short(nonce: &str) -> Reply {
    Reply::json(200, text(nonce))
}

pub(super) fn right(nonce: &str) -> Want {
    Want::Whole(200, text(nonce).into())
}

fn text(nonce: &str) -> String {
    format!(
        r#"{{"id":"{nonce}","choices":[],"usage":{{"prompt_tokens":3,"completion_tokens":4}}}}"#
    )
}

/// Events of a stream, which name their request, and all their bytes.
pub(super) fn events(nonce: &str, count: u64, pause: Duration) -> (Vec<Part>, Vec<u8>) {
    let event =
        |n| format!("data: {{\"id\":\"{nonce}\",\"n\":{n},\"choices\":[]}}\n\n").into_bytes();
    let events: Vec<Vec<u8>> = (0..count).map(event).collect();
    let all = events.concat();
    (events.into_iter().map(|event| Part::after(pause, event)).collect(), all)
}

impl Lab<'_> {
    pub(super) fn connect(&self) -> Client {
        let mut client = Client::connect(self.proxy);
        client.set_limit(PATIENCE);
        client
    }

    /// Sends the request on a connection of its own and judges its answer.
    pub(super) fn exchange(&self, ask: Ask) -> Outcome {
        self.exchange_on(&mut self.connect(), ask).map(|(word, _)| word)
    }

    /// Sends the request and judges its answer; also returns the keys that upstream saw.
    pub(super) fn exchange_on(
        &self,
        client: &mut Client,
        ask: Ask,
    ) -> Result<(String, Vec<String>), String> {
        self.exchange_with(client, ask, Client::read_answer)
    }

    /// The same, with the client's own way of reading.
    pub(super) fn exchange_with(
        &self,
        client: &mut Client,
        ask: Ask,
        read: impl FnOnce(&mut Client) -> Result<Answer, Cut>,
    ) -> Result<(String, Vec<String>), String> {
        let turns = self.upstream.turns();
        self.announce(&ask);
        send(client, &ask);
        let answer = read(client);
        let plan = self.upstream.done(&ask.nonce);
        let is_shaken = !turns.is_multiple_of(2) || turns != self.upstream.turns();
        judge(&ask.wanted, &answer, is_shaken)
            .map(|word| (word, plan.keys))
            .map_err(|wrong| format!("{} {} {}: {wrong}", ask.method, ask.path, ask.nonce))
    }

    /// Tells upstream what to answer; [`Upstream::done`] ends it.
    pub(super) fn announce(&self, ask: &Ask) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let (body, replies) = (ask.body.clone(), ask.replies.clone().into());
        self.upstream.plan(&ask.nonce, Plan { body, replies, keys: Vec::new() });
    }
}

pub(super) fn send(client: &mut Client, ask: &Ask) {
    let json = ("content-type", "application/json");
    client.send(ask.method, &ask.path, &[AUTH, json, (NONCE, &ask.nonce)], &ask.body);
}

/// Whether this is what was wanted, or what anybody may get at any time. `is_shaken`: upstream was
/// away for some of the time.
fn judge(wanted: &[Want], answer: &Result<Answer, Cut>, is_shaken: bool) -> Outcome {
    for want in wanted {
        match (want, answer) {
            (Want::Whole(status, body), Ok(answer))
                if answer.status == *status && answer.body == *body =>
            {
                return Ok(status.to_string());
            }
            (Want::Broken(body), Err(cut)) if cut.received == *body && is_cut(&cut.how) => {
                return Ok("broken".to_owned());
            }
            (Want::Error(status), Ok(answer)) if answer.status == *status && is_own(answer) => {
                return Ok(format!("{status} of ours"));
            }
            (Want::Whole(200, body) | Want::Broken(body), Err(cut))
                if is_shaken && body.starts_with(&cut.received) && is_cut(&cut.how) =>
            {
                return Ok("shaken: cut".to_owned());
            }
            _ => {}
        }
    }
    match answer {
        Ok(answer) if is_pool_empty(answer) => Ok("503 pool empty".to_owned()),
        Ok(answer) if is_shaken && answer.status == 502 && is_own(answer) => {
            Ok("shaken: 502".to_owned())
        }
        Ok(answer) => Err(format!(
            "{} {:?} {} bytes: {}",
            answer.status,
            answer.headers,
            answer.body.len(),
            excerpt(&answer.body)
        )),
        Err(cut) => {
            let received = &cut.received;
            Err(format!("{:?} after {} bytes: {}", cut.how, received.len(), excerpt(received)))
        }
    }
}

/// In a chunked body a cut shows as something that is no chunk.
fn is_cut(how: &How) -> bool {
    *how != How::TimedOut
}

/// Errors of the proxy's own say in all three protocols what happened.
fn is_own(answer: &Answer) -> bool {
    answer.text().contains("\"message\":")
}

fn is_pool_empty(answer: &Answer) -> bool {
    answer.status == 503
        && answer.header("retry-after").is_some_and(|seconds| seconds == "1")
        && answer.text().contains("the free quota of all")
}

fn excerpt(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(300)]).into_owned()
}

/// The path of one of the two protocols.
pub(super) fn path(number: u64) -> &'static str {
    [CHAT, MESSAGES][usize::from(number.is_multiple_of(2))]
}
