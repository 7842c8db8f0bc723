//! Virtual hosts: the opened folder, certificate, pages and rules of each.

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

/// A site with its opened resources.
pub(crate) struct Served {
    pub(crate) root: Arc<Root>,
    pub(crate) files: Files,
    pub(crate) pages: Pages,
    /// Header fields for every response that does not have them; `None` if there are none.
    pub(crate) headers: Option<Arc<HeaderMap>>,
    /// Rules of the site, after those of the server.
    pub(crate) rules: Vec<Rule>,
    key: Option<Arc<CertifiedKey>>,
}

/// All sites, the default one first.
pub(crate) struct Sites {
    all: Vec<Served>,
    hosts: Arc<Hosts>,
    pub(crate) tls: Option<Arc<ServerConfig>>,
    /// Warnings for the operator.
    pub(crate) remarks: Vec<String>,
}

impl Sites {
    /// Opens the folders and reads the certificates.
    ///
    /// # Errors
    /// Returns the faults of folders and certificates, one per line.
    pub(crate) fn open(config: &Config) -> Result<Sites, String> {
        let hosts = Arc::new(config.hosts()?);
        let mut remarks = config.remarks();
        let mut faults = Vec::new();
        let rest = Site::default();
        let mut all: Vec<Served> = Vec::with_capacity(1 + config.site.len());
        for site in std::iter::once(&rest).chain(&config.site) {
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
                let misfits = site.hosts.iter();
                remarks.extend(
                    misfits
                        .filter(|host| !certificates::fits(key, host))
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
                remarks.push(format!(
                    "files: fallback = \"{fallback}\": there is no such file in {}",
                    folder.display()
                ));
            }
            let headers = headers::read(site.headers.as_ref().unwrap_or(&config.headers))?;
            all.push(Served {
                root,
                pages: Pages::read(pages, folder, &mut remarks),
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
        let tls = keys.map(|keys| certificates::settings(hosts.clone(), keys));
        Ok(Sites {
            tls: tls.transpose()?,
            all,
            hosts,
            remarks,
        })
    }

    pub(crate) fn get(&self, site: usize) -> &Served {
        &self.all[site]
    }

    /// Tells whether there is only the default site.
    #[inline]
    pub(crate) fn is_one(&self) -> bool {
        self.all.len() == 1
    }

    /// Returns the site of a host.
    #[inline]
    pub(crate) fn find(&self, host: &str) -> usize {
        if self.is_one() {
            return 0;
        }
        self.hosts.find(host)
    }

    /// Tells whether a client that named `server` (SNI) was shown the certificate of another site.
    /// It has to use another connection then (RFC 9110, section 15.5.20).
    pub(crate) fn is_misdirected(&self, site: usize, server: &str) -> bool {
        let shown = &self.all[self.hosts.find(server)].key;
        match (shown, &self.all[site].key) {
            (Some(shown), Some(key)) => !Arc::ptr_eq(shown, key) && shown.cert != key.cert,
            _ => false,
        }
    }
}
