//! Reads certificates from files, and selects one by the server name that the client sends.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert, ResolvesServerCertUsingSni};
use rustls::sign::CertifiedKey;
use rustls::{Error, ServerConfig};

use crate::config::TlsFiles;
use crate::request::host::Hosts;

/// Reads a certificate chain and its private key.
///
/// # Errors
/// Returns the file, its fault, and a remedy.
pub(crate) fn read(files: &TlsFiles) -> Result<Arc<CertifiedKey>, String> {
    let (certificate, key) = (files.certificate.display(), files.key.display());
    let certificate_error =
        |error: &dyn std::fmt::Display| format!("certificate {certificate}: {error}");
    let chain: Vec<_> = CertificateDer::pem_file_iter(&files.certificate)
        .and_then(Iterator::collect)
        .map_err(|error| certificate_error(&describe(&error)))?;
    if chain.is_empty() {
        let fault = match PrivateKeyDer::from_pem_file(&files.certificate) {
            Ok(_) => "this is a key; are the two files mixed up?",
            Err(_) => "no `BEGIN CERTIFICATE` in it (PEM)",
        };
        return Err(certificate_error(&fault));
    }
    let private_key = PrivateKeyDer::from_pem_file(&files.key)
        .map_err(|error| format!("key {key}: {}", describe_key_error(&files.key, &error)))?;
    let provider = rustls::crypto::ring::default_provider();
    CertifiedKey::from_der(chain, private_key, &provider)
        .map(Arc::new)
        .map_err(|error| match error {
            Error::InconsistentKeys(_) => {
                format!("key {key} is not the key of certificate {certificate}")
            }
            error => format!("certificate {certificate}, key {key}: {error}"),
        })
}

fn describe(error: &pem::Error) -> String {
    match error {
        pem::Error::MissingSectionEnd { end_marker } => {
            let end = String::from_utf8_lossy(end_marker);
            format!("it ends before `-----END {end}-----`: is it cut short?")
        }
        pem::Error::IllegalSectionStart { line } => {
            let line = String::from_utf8_lossy(line);
            format!("`{}` does not begin a PEM section", line.trim_end())
        }
        error => error.to_string(),
    }
}

fn describe_key_error(path: &Path, error: &pem::Error) -> String {
    if !matches!(error, pem::Error::NoItemsFound) {
        return describe(error);
    }
    let text = std::fs::read_to_string(path).unwrap_or_default();
    if text.contains("ENCRYPTED") {
        let path = path.display();
        return format!("it is encrypted; `openssl pkey -in {path}` writes it without a password");
    }
    if text.contains("BEGIN CERTIFICATE") {
        return "this is a certificate; are the two files mixed up?".to_owned();
    }
    "no `BEGIN PRIVATE KEY` in it (PEM)".to_owned()
}

pub(crate) fn is_valid_for(key: &CertifiedKey, host: &str) -> bool {
    // Clients send no name for addresses.
    if host.starts_with('[') || host.parse::<std::net::Ipv4Addr>().is_ok() {
        return true;
    }
    let name = host.replacen('*', "any", 1);
    let mut names = ResolvesServerCertUsingSni::new();
    names.add(&name, key.clone()).is_ok()
}

/// Creates the configuration of rustls. `keys` are ordered by site; the key of the default site is
/// first.
///
/// # Errors
/// Returns the setting that rustls does not support.
pub(crate) fn server_config(
    hosts: Arc<Hosts>,
    keys: Vec<Arc<CertifiedKey>>,
) -> Result<Arc<ServerConfig>, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(SniResolver { hosts, keys }));
    config.alpn_protocols = [&b"h2"[..], b"http/1.1", b"http/1.0"]
        .map(<[u8]>::to_vec)
        .into();
    Ok(Arc::new(config))
}

/// Selects the certificate of the site that the client names (SNI), by the table that also maps
/// requests to sites. The resolver of rustls supports neither `*.name` nor a default.
#[derive(Debug)]
struct SniResolver {
    hosts: Arc<Hosts>,
    keys: Vec<Arc<CertifiedKey>>,
}

impl ResolvesServerCert for SniResolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let site = hello.server_name().map_or(0, |name| self.hosts.find(name));
        self.keys.get(site).cloned()
    }
}
