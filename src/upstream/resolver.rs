//! Name resolution with a memory: ureq resolves the host for every request, also on a connection
//! that it already has.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use ureq::Error;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;

use crate::clock;

/// How long an answer is used without asking again.
const FRESH_FOR: Duration = Duration::from_secs(60);

/// Remembers what `inner` answered. An answer that is no longer fresh is still used, while a
/// thread asks again: a resolver that fails takes no service down.
#[derive(Debug)]
pub(crate) struct CachingResolver<R> {
    inner: Arc<R>,
    known: Arc<Mutex<HashMap<String, Known>>>,
}

#[derive(Debug)]
struct Known {
    addresses: ResolvedSocketAddrs,
    /// When the answer came, or when it was last asked for again.
    since: Instant,
}

impl<R: Resolver> CachingResolver<R> {
    /// A resolver with an empty memory.
    #[must_use]
    pub(crate) fn new(inner: R) -> Self {
        Self { inner: Arc::new(inner), known: Arc::default() }
    }

    fn refresh(&self, name: String, uri: &Uri, config: &Config, timeout: NextTimeout) {
        let (inner, known) = (Arc::clone(&self.inner), Arc::clone(&self.known));
        let (uri, config) = (uri.clone(), config.clone());
        let refresher = std::thread::Builder::new().name("resolver".into());
        // Without a thread the old answer stays, and the next request after a minute tries again.
        let _ = refresher.spawn(move || {
            if let Ok(addresses) = inner.resolve(&uri, &config, timeout) {
                known.lock().insert(name, Known { addresses, since: clock::instant() });
            }
        });
    }
}

impl<R: Resolver> Resolver for CachingResolver<R> {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, Error> {
        let (Some(scheme), Some(authority)) = (uri.scheme(), uri.authority()) else {
            return self.inner.resolve(uri, config, timeout);
        };
        let Some(name) = DefaultResolver::host_and_port(scheme, authority) else {
            return self.inner.resolve(uri, config, timeout);
        };
        if let Some(address) = literal(&name) {
            let mut addresses = self.empty();
            addresses.push(address);
            return Ok(addresses);
        }
        let now = clock::instant();
        if let Some(known) = self.known.lock().get_mut(&name) {
            let addresses = known.addresses.clone();
            if now - known.since >= FRESH_FOR {
                known.since = now;
                self.refresh(name, uri, config, timeout);
            }
            return Ok(addresses);
        }
        let addresses = self.inner.resolve(uri, config, timeout)?;
        let known = Known { addresses: addresses.clone(), since: now };
        self.known.lock().insert(name, known);
        Ok(addresses)
    }
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
    use std::sync::atomic::{AtomicUsize, Ordering};

    use ureq::Timeout;
    use ureq::unversioned::transport::time;

    use super::*;

    #[derive(Debug, Default)]
    struct Counting {
        asked: Arc<AtomicUsize>,
        fails: bool,
    }

    impl Resolver for Counting {
        fn resolve(
            &self,
            _: &Uri,
            _: &Config,
            _: NextTimeout,
        ) -> Result<ResolvedSocketAddrs, Error> {
            self.asked.fetch_add(1, Ordering::SeqCst);
            if self.fails {
                return Err(Error::HostNotFound);
            }
            let mut addresses = self.empty();
            addresses.push("192.0.2.1:443".parse().unwrap());
            Ok(addresses)
        }
    }

    fn ask(resolver: &CachingResolver<Counting>, uri: &'static str) -> Result<SocketAddr, Error> {
        let timeout = NextTimeout {
            after: time::Duration::from_secs(1),
            reason: Timeout::Resolve,
            ..NextTimeout::default()
        };
        let uri = Uri::from_static(uri);
        resolver.resolve(&uri, &Config::default(), timeout).map(|addresses| addresses[0])
    }

    #[test]
    fn a_name_is_asked_for_once() {
        let inner = Counting::default();
        let asked = Arc::clone(&inner.asked);
        let resolver = CachingResolver::new(inner);
        for _ in 0..40 {
            let address = ask(&resolver, "https://dashscope.example/x").unwrap();
            assert_eq!(address, "192.0.2.1:443".parse().unwrap());
        }
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        ask(&resolver, "https://dashscope.example:444/x").unwrap();
        ask(&resolver, "https://other.example/x").unwrap();
        assert_eq!(asked.load(Ordering::SeqCst), 3);
    }

    #[test]
    fn an_address_is_not_asked_for() {
        let inner = Counting::default();
        let asked = Arc::clone(&inner.asked);
        let resolver = CachingResolver::new(inner);
        assert_eq!(
            ask(&resolver, "http://127.0.0.1:81/").unwrap(),
            "127.0.0.1:81".parse().unwrap()
        );
        assert_eq!(ask(&resolver, "http://[::1]/").unwrap(), "[::1]:80".parse().unwrap());
        assert_eq!(asked.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn a_failure_is_not_remembered() {
        let inner = Counting { fails: true, ..Counting::default() };
        let asked = Arc::clone(&inner.asked);
        let resolver = CachingResolver::new(inner);
        for _ in 0..2 {
            assert!(ask(&resolver, "https://dashscope.example/").is_err());
        }
        assert_eq!(asked.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn an_old_answer_is_used_while_a_new_one_is_fetched_or_fails() {
        let inner = Counting { fails: true, ..Counting::default() };
        let asked = Arc::clone(&inner.asked);
        let resolver = CachingResolver::new(inner);
        let mut addresses = resolver.empty();
        addresses.push("192.0.2.9:443".parse().unwrap());
        let since = clock::instant().checked_sub(FRESH_FOR).unwrap();
        resolver.known.lock().insert("old.example:443".into(), Known { addresses, since });
        for _ in 0..5 {
            let address = ask(&resolver, "https://old.example/").unwrap();
            assert_eq!(address, "192.0.2.9:443".parse().unwrap());
        }
        // One of the five asked again, in a thread that may not have run yet.
        assert!(asked.load(Ordering::SeqCst) <= 1);
    }
}
