//! What is done for a request by those who may wait for its client: receivers, workers,
//! responders and refusers.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use http::{HeaderMap, HeaderValue};
use log::{debug, info};
use tiny_http::Request;

use super::answer::{self, Answer};
use super::bodies::{self, ReceiveError, Received};
use super::connections::Activity;
use super::head;
use super::intake::{Front, Pending};
use super::workers::Job;
use crate::clock;
use crate::error::ProxyError;
use crate::log_text::{Quoted, millis};
use crate::policy::route::{self, Endpoint, Local, Steer};
use crate::proxy::ClientRequest;
use crate::relay;

impl Front {
    /// Waits for a body, on a receiver.
    pub(super) fn receive(self: &Arc<Self>, mut pending: Pending, endpoint: Endpoint) {
        match self.read_body(&mut pending) {
            Ok(body) => {
                self.admit(pending, endpoint, Some(body));
            }
            Err(error) => self.give_up(pending, error),
        }
    }

    /// There is no body: the client is told why, unless it has left.
    fn give_up(self: &Arc<Self>, pending: Pending, error: ReceiveError) {
        match error {
            ReceiveError::Refused(error) => self.give_refusal(pending, error),
            ReceiveError::Unreadable if pending.turn.client_has_left() => self.abandon(pending),
            ReceiveError::Unreadable => {
                let text = "the chunks of the body cannot be read";
                self.give_refusal(pending, ProxyError::Malformed(text));
            }
            ReceiveError::Broken => self.abandon(pending),
        }
    }

    /// The client broke off in its body: there is nobody to answer.
    fn abandon(self: &Arc<Self>, pending: Pending) {
        debug!("broken client={} in=body", pending.head.peer.ip());
        pending.turn.condemn();
        if let Some(connection) = pending.turn.connection() {
            connection.shut();
        }
        self.bury(pending.request);
    }

    fn read_body(&self, pending: &mut Pending) -> Result<Received, ReceiveError> {
        let Pending { request, head, turn, is_read, is_last, .. } = pending;
        let begun = clock::instant();
        let progress = |bytes| turn.turn_to(Activity::Sending { before: begun.elapsed(), bytes });
        let largest = self.config.max_body_bytes;
        let outcome = bodies::receive(request, head.length, largest, &self.budget, progress);
        *is_read = outcome.is_ok();
        *is_last = outcome.as_ref().is_ok_and(|body| body.is_last);
        outcome
    }

    /// Serves a request, on a worker. `queued`: it had to wait for one. (Not inlined, or workers that wait would have its stack.)
    #[inline(never)]
    pub(super) fn serve(self: &Arc<Self>, job: Job, queued: bool) {
        let Job { mut pending, endpoint, body, ticket: _ticket } = job;
        let waited = pending.waited || queued;
        let body = match body {
            Some(body) => body,
            None if endpoint.is_upload() => Received::default(),
            None => match self.read_body(&mut pending) {
                Ok(body) => body,
                Err(error) => return self.give_up(pending, error),
            },
        };
        pending.turn.turn_to(Activity::Served);
        let Received { bytes, share: _share, .. } = body;
        let headers = head::header_pairs(&pending.request)
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        let request = ClientRequest {
            id: self.next_id.fetch_add(1, Ordering::Relaxed),
            peer: pending.head.peer,
            method: pending.head.method.clone(),
            path: pending.head.path.clone(),
            query: pending.head.query.clone(),
            headers,
            body: bytes,
            endpoint,
            arrived: pending.arrived,
            waited,
        };
        let is_upload = request.endpoint.is_upload();
        let mut answer = self.answer_to(pending);
        if !is_upload {
            answer = answer.body_was_read();
        }
        self.proxy.serve(request, Box::new(answer));
    }

    fn answer_to(&self, pending: Pending) -> Answer {
        let Pending { request, head, turn, is_last, .. } = pending;
        Answer::new(request, &head, turn, is_last)
    }

    /// Does what a person asks of the pool.
    pub(super) fn steer(self: &Arc<Self>, mut pending: Pending, steer: Steer) {
        let body = match self.read_body(&mut pending) {
            Ok(body) => body,
            Err(error) => return self.give_up(pending, error),
        };
        match self.admin.steer(steer, &body.bytes) {
            Ok(value) => {
                let (mut head, body) = self.proxy.json_answer(200, &value);
                self.proxy.hide_from_origins(&mut head.headers);
                self.respond(pending, &head, &body);
            }
            Err(error) => self.refuse(pending, &error),
        }
    }

    pub(super) fn page(self: &Arc<Self>, pending: Pending, local: Local) {
        match self.admin.page(&local, pending.head.protocol) {
            Ok((mut page, body)) => {
                if !local.is_private() {
                    self.proxy.allow_origin(&mut page.headers);
                }
                self.respond(pending, &page, &body);
            }
            Err(error) => self.refuse(pending, &error),
        }
    }

    /// Answers a browser's question with whatever it asks for: the key is checked later. Where no
    /// other origin has any business it gets no word.
    pub(super) fn preflight(self: &Arc<Self>, pending: Pending) {
        let mut headers = HeaderMap::new();
        if self.config.cors_origin.is_some() && !route::is_private(&pending.head.path) {
            self.proxy.allow_origin(&mut headers);
            let asked = head::header(&pending.request, "access-control-request-headers");
            let asked = asked.and_then(|value| HeaderValue::from_str(value).ok());
            let allowed = asked.unwrap_or(HeaderValue::from_static("*"));
            headers.insert("access-control-allow-headers", allowed);
            let methods = HeaderValue::from_static("GET, HEAD, POST, DELETE, OPTIONS");
            headers.insert("access-control-allow-methods", methods);
            headers.insert("access-control-max-age", HeaderValue::from_static("86400"));
            if self.may_enter(&pending.request) {
                let private = "access-control-allow-private-network";
                headers.insert(private, HeaderValue::from_static("true"));
            }
        }
        let head = relay::Head { status: 204, headers, length: None };
        self.respond(pending, &head, b"");
    }

    /// Whether a page of the public web may ask this private address: where one origin is allowed and
    /// no other.
    fn may_enter(&self, request: &Request) -> bool {
        let is_asked = head::header(request, "access-control-request-private-network");
        let is_one = self.config.cors_origin.as_deref().is_some_and(|origin| origin != "*");
        is_one && is_asked.is_some_and(|value| value.eq_ignore_ascii_case("true"))
    }

    pub(super) fn refuse(self: &Arc<Self>, pending: Pending, error: &ProxyError) {
        let (mut head, body) = self.proxy.error_answer(error, pending.head.protocol);
        if route::is_private(&pending.head.path) {
            self.proxy.hide_from_origins(&mut head.headers);
        }
        info!(
            "refused client={} method={} path={} status={} error={} total_ms={}",
            pending.head.peer.ip(),
            Quoted(&pending.head.method),
            Quoted(&pending.head.path),
            head.status,
            error.code(),
            millis(pending.arrived.elapsed()),
        );
        self.respond(pending, &head, &body);
    }

    /// Writes an answer of our own. Where the body has not been read, it goes past the library and
    /// ends the connection.
    fn respond(self: &Arc<Self>, pending: Pending, head: &relay::Head, body: &[u8]) {
        debug!(
            "local client={} method={} path={} status={}",
            pending.head.peer.ip(),
            Quoted(&pending.head.method),
            Quoted(&pending.head.path),
            head.status
        );
        if pending.body_is_here() {
            return self.answer_to(pending).body_was_read().respond(head, body);
        }
        let Pending { request, head: asked, turn, .. } = pending;
        // What the client sends from here on would be taken for another request.
        turn.condemn();
        let answer = answer::whole(head, body, asked.method == "HEAD");
        let connection = turn.connection();
        if let Some(connection) = &connection {
            connection.send(&answer);
            connection.end_output();
        }
        // Not before our side has ended: what stands then is another connection.
        turn.turn_to(Activity::Lingering);
        let front = Arc::clone(self);
        let dispose = move || {
            let undertakers = Arc::clone(&front.undertakers);
            undertakers.give(move || {
                front.dispose(request);
                drop(turn);
            });
        };
        match connection {
            None => dispose(),
            Some(connection) => self.lingerer.linger(connection, dispose),
        }
    }
}
