//! The end of a connection, and of the requests that nobody answers.

use std::net::SocketAddr;
use std::sync::Arc;

use log::debug;
use tiny_http::Request;

use super::connections::Id;
use super::fd::Kept;
use super::intake::Front;
use super::refusals::{self, Disposal};
use crate::clock;

impl Front {
    /// Ends a connection that has had its last answer: our side at once, the whole of it when the
    /// client has read that answer or has had the time to. Until then what it sends is thrown
    /// away, because it would make the system reset the connection under the answer; and only then
    /// are its further requests dropped, because a drop reads their bodies.
    pub(super) fn close(self: &Arc<Self>, peer: SocketAddr, id: Id, ended: Option<Kept>) {
        match ended.or_else(|| self.connection(peer)) {
            None => self.drop_line(peer, id),
            Some(connection) => {
                connection.end_output();
                let front = Arc::clone(self);
                self.lingerer.linger(connection, move || front.drop_line(peer, id));
            }
        }
    }

    /// A connection is shut: what waits behind its last answer can be dropped.
    pub(super) fn drop_line(self: &Arc<Self>, peer: SocketAddr, id: Id) {
        let line = self.connections.take_line(peer, id, clock::instant());
        line.into_iter().for_each(|request| self.bury(request));
    }

    /// Drops a request of a connection that is shut. In one thread and in order, because a drop
    /// waits for the answers before it.
    pub(super) fn bury(self: &Arc<Self>, request: Request) {
        let front = Arc::clone(self);
        self.undertakers.give(move || front.dispose(request));
    }

    /// Gets rid of a request whose connection is shut, on the thread that may wait for that.
    pub(super) fn dispose(self: &Arc<Self>, request: Request) {
        let peer = request.remote_addr().copied();
        let numbers = peer.and_then(|peer| self.undroppable.lock().remove(&peer));
        if refusals::dispose(request) == Disposal::Forgotten {
            debug!(
                "forgotten client={}",
                peer.map_or_else(|| "-".into(), |it| it.ip().to_string())
            );
            self.lost.add();
            let descriptors = Arc::clone(&self.descriptors);
            self.lingerer.bury(move || {
                descriptors.close(&numbers.unwrap_or_default());
            });
        }
    }
}
