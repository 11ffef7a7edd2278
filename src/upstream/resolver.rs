//! Name resolution with a memory: ureq resolves the host for every request, also on a connection
//! that it already has.
//!
//! A thread of its own asks for each name, and whoever needs the answer waits for it as long as it
//! may. So an answer that comes too late for one request (a server that never answers for AAAA,
//! say) is there for the next.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use ureq::Error;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{NextTimeout, time};

use crate::clock;

/// How long an answer is used without asking again.
const FRESH_FOR: Duration = Duration::from_secs(60);

/// Remembers what `inner` answered. An answer that is no longer fresh is still used, while a
/// thread asks again: a resolver that fails takes no service down.
#[derive(Debug)]
pub(super) struct CachingResolver<R> {
    inner: Arc<R>,
    memory: Arc<Memory>,
}

/// What is known of names. Those who connect tell it what came of an answer.
#[derive(Debug, Default)]
pub(super) struct Memory {
    names: Mutex<HashMap<String, Name>>,
    answered: Condvar,
}

#[derive(Debug)]
struct Name {
    /// The last answer, if there was one.
    addresses: Option<ResolvedSocketAddrs>,
    /// When it came, or when it was last asked for again.
    since: Instant,
    /// The address to which the last connection was made.
    best: Option<SocketAddr>,
    /// No connection could be made: the name may have moved.
    doubted: bool,
    /// A thread is asking.
    asking: bool,
    /// How the last question ended, if it failed.
    failure: Option<Failure>,
}

/// A failure that can be told to everybody who waited.
#[derive(Clone, Debug)]
enum Failure {
    NotFound,
    Other(String),
}

impl<R: Resolver> CachingResolver<R> {
    /// A resolver that puts its answers into this memory.
    #[must_use]
    pub(super) fn new(inner: R, memory: Arc<Memory>) -> Self {
        Self { inner: Arc::new(inner), memory }
    }

    /// Asks in a thread of its own, unless one is asking. The answer goes to the memory.
    fn ask(&self, name: &str, known: &mut Name, uri: &Uri, config: &Config) {
        if known.asking {
            return;
        }
        let (inner, memory) = (Arc::clone(&self.inner), Arc::clone(&self.memory));
        let (name, uri, config) = (name.to_owned(), uri.clone(), config.clone());
        let asker = std::thread::Builder::new().name("resolver".into());
        let asked = asker.spawn(move || {
            let limit =
                NextTimeout { after: time::Duration::NotHappening, ..NextTimeout::default() };
            memory.answer(&name, inner.resolve(&uri, &config, limit));
        });
        match asked {
            Ok(_) => known.asking = true,
            Err(error) => known.failure = Some(Failure::Other(format!("no thread: {error}"))),
        }
    }
}

impl<R: Resolver> Resolver for CachingResolver<R> {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, Error> {
        let Some(name) = name_of(uri) else {
            return self.inner.resolve(uri, config, timeout);
        };
        if let Some(address) = literal(&name) {
            let mut addresses = self.empty();
            addresses.push(address);
            return Ok(addresses);
        }
        let now = clock::instant();
        let mut names = self.memory.names.lock();
        let known = names.entry(name.clone()).or_insert_with(|| Name::new(now));
        if let Some(addresses) = known.usable() {
            if now - known.since >= FRESH_FOR {
                known.since = now;
                self.ask(&name, known, uri, config);
            }
            return Ok(addresses);
        }
        known.failure = None;
        self.ask(&name, known, uri, config);
        let deadline = now + (*timeout.after).min(FRESH_FOR);
        while names.get(&name).is_some_and(|known| known.asking) {
            if self.memory.answered.wait_until(&mut names, deadline).timed_out() {
                break;
            }
        }
        names.get(&name).map_or(Err(Error::HostNotFound), |known| known.outcome(timeout))
    }
}

impl Memory {
    /// A connection was made to this address: it is the first to be tried next time.
    pub(super) fn prefer(&self, uri: &Uri, address: SocketAddr) {
        self.with(uri, |known| {
            known.best = Some(address);
            known.doubted = false;
        });
    }

    /// No connection could be made: the next request asks anew.
    pub(super) fn doubt(&self, uri: &Uri) {
        self.with(uri, |known| {
            known.best = None;
            known.doubted = true;
        });
    }

    fn with(&self, uri: &Uri, change: impl FnOnce(&mut Name)) {
        if let Some(name) = name_of(uri)
            && let Some(known) = self.names.lock().get_mut(&name)
        {
            change(known);
        }
    }

    fn answer(&self, name: &str, answer: Result<ResolvedSocketAddrs, Error>) {
        if let Some(known) = self.names.lock().get_mut(name) {
            known.asking = false;
            match answer {
                Ok(addresses) => {
                    known.addresses = Some(addresses);
                    known.since = clock::instant();
                    known.doubted = false;
                    known.failure = None;
                }
                Err(Error::HostNotFound) => known.failure = Some(Failure::NotFound),
                Err(error) => known.failure = Some(Failure::Other(error.to_string())),
            }
        }
        self.answered.notify_all();
    }
}

impl Name {
    fn new(now: Instant) -> Self {
        Self {
            addresses: None,
            since: now,
            best: None,
            doubted: false,
            asking: false,
            failure: None,
        }
    }

    /// The addresses that can be used without waiting.
    fn usable(&self) -> Option<ResolvedSocketAddrs> {
        if self.doubted { None } else { self.ordered() }
    }

    /// The best address first, the others as they were answered.
    fn ordered(&self) -> Option<ResolvedSocketAddrs> {
        let mut addresses = self.addresses.clone()?;
        if let Some(place) = addresses.iter().position(|address| Some(*address) == self.best) {
            addresses[..=place].rotate_right(1);
        }
        Some(addresses)
    }

    /// What somebody gets who has waited: the old addresses are better than none.
    fn outcome(&self, timeout: NextTimeout) -> Result<ResolvedSocketAddrs, Error> {
        self.ordered().ok_or_else(|| match &self.failure {
            None => Error::Timeout(timeout.reason),
            Some(Failure::NotFound) => Error::HostNotFound,
            Some(Failure::Other(text)) => Error::Io(io::Error::other(text.clone())),
        })
    }
}

fn name_of(uri: &Uri) -> Option<String> {
    DefaultResolver::host_and_port(uri.scheme()?, uri.authority()?)
}

/// An address that needs no resolving.
fn literal(name: &str) -> Option<SocketAddr> {
    name.parse().ok().or_else(|| {
        let (host, port) = name.rsplit_once(':')?;
        let host: IpAddr = host.parse().ok()?;
        Some(SocketAddr::new(host, port.parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use crossbeam_channel::{Receiver, Sender};
    use ureq::Timeout;

    use super::*;

    const URI: &str = "https://dashscope.example/x";

    /// Answers what it is told, when it is told.
    #[derive(Debug)]
    struct Told {
        answers: Receiver<Result<&'static [&'static str], Error>>,
        asked: Sender<()>,
    }

    impl Resolver for Told {
        fn resolve(
            &self,
            _: &Uri,
            _: &Config,
            _: NextTimeout,
        ) -> Result<ResolvedSocketAddrs, Error> {
            self.asked.send(()).unwrap();
            let mut addresses = self.empty();
            for address in self.answers.recv().unwrap()? {
                addresses.push(address.parse().unwrap());
            }
            Ok(addresses)
        }
    }

    struct Lab {
        resolver: CachingResolver<Told>,
        tell: Sender<Result<&'static [&'static str], Error>>,
        asked: Receiver<()>,
    }

    impl Lab {
        fn new() -> Self {
            let (tell, answers) = crossbeam_channel::unbounded();
            let (say, asked) = crossbeam_channel::unbounded();
            let told = Told { answers, asked: say };
            Self { resolver: CachingResolver::new(told, Arc::default()), tell, asked }
        }

        fn ask_within(&self, uri: &'static str, limit: Duration) -> Result<Vec<String>, Error> {
            let after = time::Duration::Exact(limit);
            let timeout = NextTimeout { after, reason: Timeout::Resolve, ..NextTimeout::default() };
            let answer = self.resolver.resolve(&Uri::from_static(uri), &Config::default(), timeout);
            answer.map(|addresses| addresses.iter().map(ToString::to_string).collect())
        }

        fn ask(&self, uri: &'static str) -> Result<Vec<String>, Error> {
            self.ask_within(uri, Duration::from_secs(10))
        }

        fn memory(&self) -> &Memory {
            &self.resolver.memory
        }

        fn age(&self) {
            for known in self.memory().names.lock().values_mut() {
                known.since = clock::instant().checked_sub(FRESH_FOR).unwrap();
            }
        }
    }

    const ONE: &[&str] = &["192.0.2.1:443"];
    const TWO: &[&str] = &["192.0.2.2:443", "192.0.2.3:443"];

    #[test]
    fn a_name_is_asked_for_once() {
        let lab = Lab::new();
        lab.tell.send(Ok(ONE)).unwrap();
        for _ in 0..40 {
            assert_eq!(lab.ask(URI).unwrap(), ONE);
        }
        lab.tell.send(Ok(TWO)).unwrap();
        lab.tell.send(Ok(TWO)).unwrap();
        assert_eq!(lab.ask("https://dashscope.example:444/x").unwrap(), TWO);
        assert_eq!(lab.ask("https://other.example/x").unwrap(), TWO);
        assert_eq!(lab.asked.len(), 3);
    }

    #[test]
    fn an_address_is_not_asked_for() {
        let lab = Lab::new();
        assert_eq!(lab.ask("http://127.0.0.1:81/").unwrap(), ["127.0.0.1:81"]);
        assert_eq!(lab.ask("http://[::1]/").unwrap(), ["[::1]:80"]);
        assert_eq!(lab.asked.len(), 0);
    }

    #[test]
    fn a_failure_is_not_remembered() {
        let lab = Lab::new();
        lab.tell.send(Err(Error::HostNotFound)).unwrap();
        assert!(matches!(lab.ask(URI), Err(Error::HostNotFound)));
        lab.tell.send(Ok(ONE)).unwrap();
        assert_eq!(lab.ask(URI).unwrap(), ONE);
    }

    #[test]
    fn an_answer_that_comes_too_late_is_there_for_the_next_request() {
        let lab = Lab::new();
        for _ in 0..3 {
            let outcome = lab.ask_within(URI, Duration::from_millis(5));
            assert!(matches!(outcome, Err(Error::Timeout(Timeout::Resolve))), "{outcome:?}");
        }
        lab.tell.send(Ok(ONE)).unwrap();
        assert_eq!(lab.ask(URI).unwrap(), ONE);
        assert_eq!(lab.asked.len(), 1, "it was asked for once");
    }

    #[test]
    fn an_old_answer_is_used_while_a_new_one_is_fetched_or_fails() {
        let lab = Lab::new();
        lab.tell.send(Ok(ONE)).unwrap();
        lab.ask(URI).unwrap();
        lab.age();
        for _ in 0..5 {
            assert_eq!(lab.ask(URI).unwrap(), ONE);
        }
        lab.tell.send(Err(Error::HostNotFound)).unwrap();
        assert_eq!(lab.ask(URI).unwrap(), ONE);
    }

    #[test]
    fn after_a_failed_connection_it_is_asked_for_anew() {
        let (lab, uri) = (Lab::new(), Uri::from_static(URI));
        lab.tell.send(Ok(ONE)).unwrap();
        lab.ask(URI).unwrap();
        lab.memory().doubt(&uri);
        lab.tell.send(Ok(TWO)).unwrap();
        assert_eq!(lab.ask(URI).unwrap(), TWO);
        // A resolver that fails takes nothing away.
        lab.memory().doubt(&uri);
        lab.tell.send(Err(Error::HostNotFound)).unwrap();
        assert_eq!(lab.ask(URI).unwrap(), TWO);
    }

    #[test]
    fn the_address_that_worked_is_first_next_time() {
        let (lab, uri) = (Lab::new(), Uri::from_static(URI));
        lab.tell.send(Ok(TWO)).unwrap();
        lab.ask(URI).unwrap();
        lab.memory().prefer(&uri, TWO[1].parse().unwrap());
        assert_eq!(lab.ask(URI).unwrap(), [TWO[1], TWO[0]]);
    }
}
