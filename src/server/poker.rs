//! Wakes connections that the library has left lying.
//!
//! Its pool queues a new connection whenever a thread *looks* idle; of a burst, more are queued than
//! threads wake, and the surplus is not read until some other connection closes. So each
//! connection's first request is followed by a connection of our own that closes at once, and frees
//! a thread for one that waits.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crossbeam_channel::Sender;
use nix::libc;
use nix::sys::socket::{setsockopt, sockopt};

use crate::panics::Alarm;

/// Pokes that may be outstanding: more would tell the library nothing new.
const MOST: usize = 256;

/// How long a poke waits to be accepted.
const LIMIT: Duration = Duration::from_secs(1);

/// The thread that connects to ourselves.
pub(super) struct Poker(Sender<()>);

impl Poker {
    /// Starts it. `address`: where this process reaches itself.
    pub(super) fn start(alarm: &Alarm, address: SocketAddr) -> io::Result<Self> {
        let (pokes, wanted) = crossbeam_channel::bounded(MOST);
        alarm.essential("poker", move || wanted.iter().for_each(|()| connect(address)))?;
        Ok(Self(pokes))
    }

    /// Asks for so many pokes and does not wait.
    pub(super) fn poke(&self, count: usize) {
        for _ in 0..count {
            let _ = self.0.try_send(());
        }
    }
}

fn connect(address: SocketAddr) {
    if let Ok(socket) = TcpStream::connect_timeout(&address, LIMIT) {
        // A reset instead of a farewell: no socket of ours stays behind in TIME_WAIT.
        let at_once = libc::linger { l_onoff: 1, l_linger: 0 };
        let _ = setsockopt(&socket, sockopt::Linger, &at_once);
    }
}
