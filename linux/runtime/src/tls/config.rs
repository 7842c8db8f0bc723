//! Configurations from PEM files.

use std::io;
use std::path::Path;
use std::sync::Arc;

use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::{Error as PemError, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};

use crate::fs;

fn invalid(message: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message.into())
}

/// Returns the provider of the cryptography. Configurations name it explicitly, because a program
/// may contain several providers.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn certificates(pem: &[u8]) -> io::Result<Vec<CertificateDer<'static>>> {
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|error| invalid(format!("the certificates are not valid PEM: {error}")))?;
    if certificates.is_empty() {
        return Err(invalid(
            "no certificate found: a PEM file with BEGIN CERTIFICATE is needed",
        ));
    }
    Ok(certificates)
}

/// Creates a server's configuration from its certificate, followed by the certificates that lead to
/// a root certificate, and from its private key, both in PEM. Clients need no certificate. Set
/// `alpn_protocols` of the result to offer HTTP/2 and the like.
///
/// # Errors
/// `InvalidData`, with a text that says which part is missing or wrong, or that the key belongs to
/// another certificate.
pub fn server_config(certificates_pem: &[u8], key_pem: &[u8]) -> io::Result<ServerConfig> {
    let chain = certificates(certificates_pem)?;
    let key = PrivateKeyDer::from_pem_slice(key_pem).map_err(|error| match error {
        PemError::NoItemsFound => invalid(
            "no private key found: a PEM file with BEGIN PRIVATE KEY, without a password, is needed",
        ),
        error => invalid(format!("the private key is not valid PEM: {error}")),
    })?;
    ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| invalid(error.to_string()))?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(|error| invalid(format!("certificate and key cannot be used: {error}")))
}

/// [`server_config`] from two files.
///
/// # Cancellation safety
/// The future may be dropped at any time.
///
/// # Errors
/// Errors of reading the files, with the names of the files, and the errors of [`server_config`].
pub async fn load_server_config(
    certificates: impl AsRef<Path>,
    key: impl AsRef<Path>,
) -> io::Result<ServerConfig> {
    let read = async |path: &Path| {
        fs::read(path).await.map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("cannot read {}: {error}", path.display()),
            )
        })
    };
    let certificates_pem = read(certificates.as_ref()).await?;
    let key_pem = read(key.as_ref()).await?;
    server_config(&certificates_pem, &key_pem)
}

/// Creates a client's configuration that trusts the root certificates in a PEM file and no others,
/// for instance those of the system (`/etc/ssl/certs/ca-certificates.crt`).
///
/// # Errors
/// `InvalidData`, with a text that says which part is missing or wrong.
pub fn client_config(roots_pem: &[u8]) -> io::Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    // One usable root suffices, because systems carry old roots that rustls cannot parse.
    let (num_usable, _) = roots.add_parsable_certificates(certificates(roots_pem)?);
    if num_usable == 0 {
        return Err(invalid("none of the root certificates can be used"));
    }
    Ok(ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| invalid(error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth())
}
