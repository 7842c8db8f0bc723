//! The virtual hosts (*sites*) of a server, each with its opened folder, certificate, pages and
//! rules.

use std::sync::Arc;

use http::HeaderMap;
use rustls::ServerConfig;
use rustls::sign::CertifiedKey;

use crate::config::{Config, Files, Site, headers};
use crate::files::Root;
use crate::request::host::Hosts;
use crate::request::rules::Rule;
use crate::sites::pages::Pages;
use crate::tls::certificates;

mod pages;

/// A site with its opened folder, certificate, pages and rules.
pub(crate) struct OpenSite {
    pub(crate) root: Arc<Root>,
    pub(crate) files: Files,
    pub(crate) pages: Pages,
    /// Header fields that are added to a response unless it has them, or `None` if there are none.
    pub(crate) headers: Option<Arc<HeaderMap>>,
    pub(crate) rules: Vec<Rule>,
    key: Option<Arc<CertifiedKey>>,
}

pub(crate) struct Sites {
    all: Vec<OpenSite>,
    hosts: Arc<Hosts>,
    pub(crate) tls: Option<Arc<ServerConfig>>,
    pub(crate) warnings: Vec<String>,
}

impl Sites {
    /// Opens the folders and reads the certificates.
    ///
    /// # Errors
    /// Returns the faults of folders and certificates, one per line, or another fault of the
    /// configuration.
    pub(crate) fn open(config: &Config) -> Result<Sites, String> {
        let hosts = Arc::new(config.hosts()?);
        let mut warnings = config.warnings();
        let mut faults = Vec::new();
        // The first site serves all hosts that no other site names.
        let default_site = Site::default();
        let mut all: Vec<OpenSite> = Vec::with_capacity(1 + config.site.len());
        for site in std::iter::once(&default_site).chain(&config.site) {
            let root = match (&site.root, all.first()) {
                (None, Some(first)) => Ok(first.root.clone()),
                (path, _) => {
                    let path = path.as_ref().unwrap_or(&config.root);
                    Root::open(path)
                        .map_err(|error| format!("cannot serve {}: {error}", path.display()))
                }
            };
            let key = match (&site.tls, all.first()) {
                (None, Some(first)) => Ok(first.key.clone()),
                (files, _) => {
                    let files = files.as_ref().or(config.tls.as_ref());
                    files.map(certificates::read).transpose()
                }
            };
            let (root, key) = match (root, key) {
                (Ok(root), Ok(key)) => (root, key),
                (root, key) => {
                    faults.extend(root.err().into_iter().chain(key.err()));
                    continue;
                }
            };
            if let (Some(files), Some(key)) = (&site.tls, &key) {
                let hosts = site.hosts.iter();
                warnings.extend(
                    hosts
                        .filter(|host| !certificates::is_valid_for(key, host))
                        .map(|host| {
                            let path = files.certificate.display();
                            format!("certificate {path} is not for {host}: clients will refuse it")
                        }),
                );
            }
            let pages = site.error_pages.as_ref().unwrap_or(&config.error_pages);
            let folder = site.root.as_ref().unwrap_or(&config.root);
            let files = site.files.as_ref().unwrap_or(&config.files);
            if let Some(fallback) = &files.fallback
                && !folder.join(fallback).is_file()
            {
                warnings.push(format!(
                    "files.fallback: there is no file \"{fallback}\" in {}",
                    folder.display()
                ));
            }
            let headers = headers::read(site.headers.as_ref().unwrap_or(&config.headers))?;
            all.push(OpenSite {
                root,
                pages: Pages::read(pages, folder, &mut warnings),
                files: files.clone(),
                headers: (!headers.is_empty()).then(|| Arc::new(headers)),
                rules: site.priority.clone(),
                key,
            });
        }
        if !faults.is_empty() {
            return Err(faults.join("\n"));
        }
        let keys: Option<Vec<_>> = all.iter().map(|site| site.key.clone()).collect();
        let tls = keys.map(|keys| certificates::server_config(hosts.clone(), keys));
        Ok(Sites {
            tls: tls.transpose()?,
            all,
            hosts,
            warnings,
        })
    }

    pub(crate) fn get(&self, site: usize) -> &OpenSite {
        &self.all[site]
    }

    #[inline]
    pub(crate) fn is_single(&self) -> bool {
        self.all.len() == 1
    }

    #[inline]
    pub(crate) fn find(&self, host: &str) -> usize {
        if self.is_single() {
            return 0;
        }
        self.hosts.find(host)
    }

    /// Returns whether a client that named `server_name` (SNI) has received the certificate of
    /// another site. The client must then use another connection (RFC 9110, section 15.5.20).
    pub(crate) fn is_misdirected(&self, site: usize, server_name: &str) -> bool {
        let sent_key = &self.all[self.hosts.find(server_name)].key;
        match (sent_key, &self.all[site].key) {
            (Some(sent_key), Some(key)) => !Arc::ptr_eq(sent_key, key) && sent_key.cert != key.cert,
            _ => false,
        }
    }
}
