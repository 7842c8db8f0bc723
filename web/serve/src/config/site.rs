//! The settings of a virtual host, which is a part of the server for a few host names.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;

use super::{Files, TlsFiles};
use crate::request::host::Hosts;
use crate::request::rules::Rule;

/// Settings for some hosts. A setting that is absent has the value of the server.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct Site {
    /// Host names, `*.name` for all subdomains of a name, and addresses; without ports.
    pub hosts: Vec<String>,
    /// The folder whose files are served.
    pub root: Option<PathBuf>,
    /// Certificate and key; permitted only if the server has a certificate for the other hosts.
    pub tls: Option<TlsFiles>,
    /// Rules that follow the rules of the server.
    pub priority: Vec<Rule>,
    /// Header fields, by name, for every response that does not have them.
    pub headers: Option<BTreeMap<String, String>>,
    /// Settings for static files.
    pub files: Option<Files>,
    /// Path of the page for each error status (`404`, `50x`, `4xx`), relative to the root.
    pub error_pages: Option<BTreeMap<String, PathBuf>>,
}

/// Returns the table of the hosts. Site 0 serves all hosts that no site names; the configured sites
/// count from 1.
///
/// # Errors
/// Returns the first fault of a site or of one of its names.
pub(super) fn hosts(sites: &[Site], has_certificate: bool) -> Result<Hosts, String> {
    let mut hosts = Hosts::default();
    for (site, number) in sites.iter().zip(1..) {
        if site.hosts.is_empty() {
            return Err(format!(
                "site {number} names no host: write e.g. hosts = [\"example.com\"]"
            ));
        }
        if site.tls.is_some() && !has_certificate {
            let host = &site.hosts[0];
            return Err(format!(
                "site {number} ({host}) has a certificate, and the server has none: set `tls` outside of [[site]] too, for clients that ask for other hosts or for none"
            ));
        }
        for host in &site.hosts {
            hosts.add(host, number)?;
        }
    }
    Ok(hosts)
}
