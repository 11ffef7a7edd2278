//! TLS towards DashScope: whom it trusts, and with which cryptography.

use std::sync::Arc;

use rustls::crypto::{CryptoProvider, KeyProvider, ring};
use rustls::pki_types::PrivateKeyDer;
use rustls::sign::SigningKey;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

/// Trusts the bundled roots and `own`, certificates in DER.
pub(super) fn config(own: &[Vec<u8>]) -> TlsConfig {
    let provider = CryptoProvider { key_provider: &NoKeys, ..ring::default_provider() };
    TlsConfig::builder()
        .root_certs(roots(own))
        .unversioned_rustls_crypto_provider(Arc::new(provider))
        .build()
}

fn roots(own: &[Vec<u8>]) -> RootCerts {
    let bundled = webpki_root_certs::TLS_SERVER_ROOT_CERTS.iter();
    let own = own.iter().map(|der| Certificate::from_der(der).to_owned());
    bundled.map(|root| Certificate::from_der(root)).chain(own).into()
}

/// A client without a certificate signs nothing. Saying so leaves ring's signing out of the binary.
#[derive(Debug)]
struct NoKeys;

impl KeyProvider for NoKeys {
    fn load_private_key(
        &self,
        _: PrivateKeyDer<'static>,
    ) -> Result<Arc<dyn SigningKey>, rustls::Error> {
        Err(rustls::Error::General("no private key is used here".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use rustls::RootCertStore;

    use super::*;

    #[test]
    fn every_bundled_root_can_be_used() {
        let bundled = webpki_root_certs::TLS_SERVER_ROOT_CERTS;
        let mut store = RootCertStore::empty();
        let (added, ignored) = store.add_parsable_certificates(bundled.iter().cloned());
        assert_eq!((added, ignored), (bundled.len(), 0));
        assert!(matches!(roots(&[]), RootCerts::Specific(all) if all.len() == bundled.len()));
    }
}
