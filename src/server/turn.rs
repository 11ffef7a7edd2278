//! A connection's turn: what its request in work may do to it.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use super::connections::{Activity, Id, Rest};
use super::fd::Kept;
use super::intake::Front;
use crate::clock;
use crate::upstream::ClientWatch;

/// A connection's turn. Given back, the connection's next request is handed out.
pub(super) struct Turn {
    front: Arc<Front>,
    peer: SocketAddr,
    id: Id,
    /// The connection, once its output has ended: the library may close it with its last writer.
    ended: Option<Kept>,
}

impl Turn {
    pub(super) fn new(front: &Arc<Front>, peer: SocketAddr, id: Id) -> Self {
        Self { front: Arc::clone(front), peer, id, ended: None }
    }

    pub(super) fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Whether this is the connection's last turn: the process stops, or too much came behind it.
    pub(super) fn is_last(&self) -> bool {
        self.front.is_draining() || self.front.connections.is_condemned(self.peer)
    }

    pub(super) fn turn_to(&self, activity: Activity) {
        self.front.connections.turn_to(self.peer, activity, clock::instant());
    }

    /// This is the connection's last turn: nothing that it still sends is answered.
    pub(super) fn condemn(&self) {
        self.front.connections.condemn(self.peer);
    }

    /// Tells the client that nothing more will come.
    pub(super) fn end_output(&mut self) {
        self.ended = self.connection();
        self.ended.iter().for_each(|connection| connection.end_output());
    }

    /// The connection, unless it is gone.
    pub(super) fn connection(&self) -> Option<Kept> {
        self.front.connection(self.peer)
    }

    pub(super) fn client_has_left(&self) -> bool {
        self.front.client_has_left(self.peer)
    }

    /// Something that can be asked at any time whether the client has left.
    pub(super) fn watch(&self) -> ClientWatch {
        let (front, peer) = (Arc::clone(&self.front), self.peer);
        Box::new(move || front.client_has_left(peer))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let (peer, id) = (self.peer, self.id);
        match self.front.connections.finish(peer, id, clock::instant()) {
            Rest::Nothing => {}
            Rest::Next(request) => {
                self.front.dispatch(Self::new(&self.front, peer, id), request, true);
            }
            Rest::Close => self.front.close(peer, id, self.ended.take()),
            Rest::Shut => self.front.drop_line(peer, id),
        }
    }
}

impl fmt::Debug for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turn").field("peer", &self.peer).finish_non_exhaustive()
    }
}
