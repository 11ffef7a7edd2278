//! One connection: reads requests, asks the script, plays the answers.

use std::io::{self, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use nix::libc;
use nix::sys::socket::{setsockopt, sockopt};

use super::answers::{self, Question, Wanted};
use super::limits;
use super::output::Output;
use super::routes;
use super::script::{End, Framing, Reply};
use super::shared::{Open, Shared, State};
use super::wire::{self, Reader, Request};
use super::{Call, Wrap};
use crate::clock::{self, Timestamp};

/// How a connection goes on after an answer.
enum After {
    Keep,
    Close,
    Reset,
}

/// A request in work.
struct Exchange {
    request: Request,
    wanted: Wanted,
    id: String,
    arrived: Timestamp,
}

impl Exchange {
    fn model(&self) -> Option<&str> {
        self.wanted.model.as_str()
    }

    fn question(&self) -> Question<'_> {
        Question {
            request: &self.request,
            wanted: &self.wanted,
            model: self.model(),
            key: self.request.key(),
            id: &self.id,
            arrived: self.arrived,
        }
    }
}

pub(super) struct Connection {
    shared: Arc<Shared>,
    number: usize,
    control: Arc<TcpStream>,
    reader: Reader,
    watcher: Option<JoinHandle<()>>,
    /// Last, so that everything else is closed when the connection stops to count as open.
    _registered: Registered,
}

/// An entry in the list of open connections, however the connection ends.
struct Registered(Arc<Shared>, usize);

impl Drop for Registered {
    fn drop(&mut self) {
        let entry = self.0.state.lock().open.remove(&self.1);
        // It may hold the last handle of the socket.
        drop(entry);
        self.0.changed.notify_all();
    }
}

impl Connection {
    /// Takes the accepted socket in, unless the stand-in is stopping.
    pub(super) fn open(
        shared: &Arc<Shared>,
        socket: TcpStream,
        wrap: &Wrap,
    ) -> io::Result<Connection> {
        socket.set_nodelay(true)?;
        let control = Arc::new(socket.try_clone()?);
        let reader = Reader::new(wrap(socket)?);
        let mut state = shared.state.lock();
        if state.stopping {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        let number = state.accepted;
        state.accepted += 1;
        let open = Open {
            control: Arc::clone(&control),
            served: 0,
            busy: false,
            ending: false,
            resetting: false,
            gone: false,
        };
        state.open.insert(number, open);
        drop(state);
        shared.changed.notify_all();
        let registered = Registered(Arc::clone(shared), number);
        let shared = Arc::clone(shared);
        Ok(Connection { shared, number, control, reader, watcher: None, _registered: registered })
    }

    /// Serves requests until one side ends it.
    pub(super) fn run(mut self) {
        let after = loop {
            match self.serve_one() {
                Ok(After::Keep) => {}
                Ok(after) => break after,
                Err(_) => {
                    self.shared.mark_gone(self.number);
                    let reset = self.shared.is_resetting(self.number);
                    break if reset { After::Reset } else { After::Close };
                }
            }
        };
        self.end(&after);
    }

    fn serve_one(&mut self) -> io::Result<After> {
        let Some(request) = wire::read_request(&mut self.reader)? else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        let wanted = serde_json::from_slice(&request.body).unwrap_or_default();
        let mut exchange = Exchange { request, wanted, id: String::new(), arrived: clock::now() };
        let reply = self.record(&mut exchange);
        let after = self.play(&exchange, reply)?;
        if let Some(open) = self.shared.state.lock().open.get_mut(&self.number) {
            open.busy = false;
            if open.ending {
                return Ok(After::Close);
            }
        }
        Ok(if exchange.request.last && matches!(after, After::Keep) { After::Close } else { after })
    }

    /// Notes the call, gives it its request id and takes its reply from the script.
    fn record(&self, exchange: &mut Exchange) -> Reply {
        let decide = self.shared.state.lock().script.decide();
        let decided = decide.and_then(|decide| decide(&self.call(exchange)));
        let mut state = self.shared.state.lock();
        exchange.id = format!("00000000-0000-4000-8000-{:012x}", state.call_count + 1);
        state.call_count += 1;
        if !state.forgetful {
            state.calls.push(self.call(exchange));
        }
        if let Some(open) = state.open.get_mut(&self.number) {
            open.served += 1;
            open.busy = true;
        }
        let scripted = || state.script.next_reply(exchange.request.key(), exchange.model());
        let reply = decided.unwrap_or_else(scripted);
        drop(state);
        self.shared.changed.notify_all();
        reply
    }

    fn call(&self, exchange: &Exchange) -> Call {
        let request = &exchange.request;
        Call {
            method: request.method.clone(),
            target: request.target.clone(),
            key: request.key().map(str::to_owned),
            model: exchange.model().map(str::to_owned),
            headers: request.headers.clone(),
            body: request.body.clone(),
            connection: self.number,
            arrived: exchange.arrived,
            closed: false,
        }
    }

    fn play(&mut self, exchange: &Exchange, reply: Reply) -> io::Result<After> {
        let question = exchange.question();
        let output = match reply {
            Reply::Normal => {
                let State { script, made, .. } = &mut *self.shared.state.lock();
                limits::refusal(&question, script)
                    .or_else(|| routes::normal(&question, script, made))
                    .unwrap_or_else(|| answers::normal(&question, script))
            }
            Reply::Exhausted(shape) => answers::exhausted(&question, shape),
            Reply::Refused(refusal, told) => answers::refused(&question, refusal, told),
            Reply::Answer { status, headers, body, framing } => {
                Output::whole(status, headers, body, framing)
            }
            Reply::Stream { headers, parts, framing, end } => {
                Output::stream(headers, parts, framing, end)
            }
            Reply::Gated { gate, headers, parts, framing, end } => {
                let parts = parts.into_iter().map(super::Part::now).collect();
                let stream = Output::stream(headers, parts, framing, end);
                Output { gate: Some(gate), ..stream }
            }
            Reply::Held { gate, then } => {
                self.pause(None, || gate.released() > 0)?;
                return self.play(exchange, *then);
            }
            Reply::Delay { before_head, then } => {
                self.pause(Some(before_head), || false)?;
                return self.play(exchange, *then);
            }
            Reply::CloseAfterAnswer(answer) => {
                return Ok(match self.play(exchange, *answer)? {
                    After::Keep => After::Close,
                    after => after,
                });
            }
            Reply::OnUsed(then) => {
                let state = self.shared.state.lock();
                let is_used = state.open.get(&self.number).is_some_and(|open| open.served > 1);
                drop(state);
                return self.play(exchange, if is_used { *then } else { Reply::Normal });
            }
            Reply::HangBeforeHead => {
                self.pause(None, || false)?;
                return Ok(After::Close);
            }
            Reply::CloseBeforeHead => return Ok(After::Close),
            Reply::ResetBeforeHead => return Ok(After::Reset),
        };
        self.write(&output, exchange.request.method == "HEAD")
    }

    fn write(&mut self, output: &Output, head_only: bool) -> io::Result<After> {
        let mut bytes = output.head();
        if head_only || output.is_bodiless() {
            self.send(&bytes)?;
            return Ok(After::Keep);
        }
        if output.at_once {
            for part in &output.parts {
                bytes.extend(output.framed(&part.bytes));
            }
            bytes.extend(output.terminator());
            self.send(&bytes)?;
        } else {
            self.send(&bytes)?;
            for (part, releases) in output.parts.iter().zip(1..) {
                if let Some(gate) = &output.gate {
                    self.pause(None, || gate.released() >= releases)?;
                }
                if !part.after.is_zero() {
                    self.pause(Some(part.after), || false)?;
                }
                self.send(&output.framed(&part.bytes))?;
            }
            if output.end == End::Clean {
                self.send(output.terminator())?;
            }
        }
        match output.end {
            End::Clean if output.framing == Framing::UntilClose => Ok(After::Close),
            End::Clean => Ok(After::Keep),
            End::Fin => Ok(After::Close),
            End::Reset => Ok(After::Reset),
            End::Hang => {
                self.pause(None, || false)?;
                Ok(After::Close)
            }
        }
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let stream = self.reader.get_mut();
        stream.write_all(bytes)?;
        stream.flush()
    }

    /// Waits; ends with an error as soon as the client is gone or the stand-in stops.
    fn pause(&mut self, limit: Option<Duration>, ready: impl Fn() -> bool) -> io::Result<()> {
        if self.watcher.is_none() {
            let (shared, control) = (Arc::clone(&self.shared), Arc::clone(&self.control));
            let number = self.number;
            let watcher = std::thread::Builder::new()
                .name(format!("standin-watch-{number}"))
                .spawn(move || shared.watch(number, &control))?;
            self.watcher = Some(watcher);
        }
        let deadline = limit.map(|limit| clock::instant() + limit);
        self.shared.pause(self.number, deadline, ready)
    }

    /// Closes the socket for good. A reset is only sent when its last handle closes, so the watcher
    /// has to let go of its own; ending the read side wakes it without sending a FIN.
    fn end(mut self, after: &After) {
        self.shared.mark_ending(self.number);
        let how = match after {
            After::Reset => {
                let abort = libc::linger { l_onoff: 1, l_linger: 0 };
                // A socket that is gone already needs no reset.
                let _ = setsockopt(&*self.control, sockopt::Linger, &abort);
                Shutdown::Read
            }
            After::Keep | After::Close => Shutdown::Both,
        };
        let _ = self.control.shutdown(how);
        if let Some(watcher) = self.watcher.take() {
            let _ = watcher.join();
        }
    }
}
