//! TLS towards DashScope: whom it trusts, and with which cryptography.

use std::sync::Arc;

use rustls::crypto::ring;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

/// Trusts the bundled roots and `own`, certificates in DER.
pub(super) fn config(own: &[Vec<u8>]) -> TlsConfig {
    TlsConfig::builder()
        .root_certs(roots(own))
        .unversioned_rustls_crypto_provider(Arc::new(ring::default_provider()))
        .build()
}

fn roots(own: &[Vec<u8>]) -> RootCerts {
    let bundled = webpki_root_certs::TLS_SERVER_ROOT_CERTS.iter();
    let own = own.iter().map(|der| Certificate::from_der(der).to_owned());
    bundled.map(|root| Certificate::from_der(root)).chain(own).into()
}
