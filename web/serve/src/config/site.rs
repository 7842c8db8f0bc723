//! What can be set for some names of hosts.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;

use super::{Files, TlsFiles};
use crate::request::host::Hosts;
use crate::request::rules::Rule;

/// What is set for some hosts. What is not set here is as outside of it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct Site {
    /// Names, `*.name` for all names below one, addresses; without ports.
    pub hosts: Vec<String>,
    /// The folder whose files are served.
    pub root: Option<PathBuf>,
    /// Certificate and key; only if the server has some for the other hosts.
    pub tls: Option<TlsFiles>,
    /// Rules that follow those of the server.
    pub priority: Vec<Rule>,
    /// Header fields of every response that does not have them, by name.
    pub headers: Option<BTreeMap<String, String>>,
    /// How files are served.
    pub files: Option<Files>,
    /// Pages for errors: by status (`404`, `50x`, `4xx`) a file, relative to the root.
    pub error_pages: Option<BTreeMap<String, PathBuf>>,
}

/// The table of the hosts: site 0 is for all others, then they count from 1.
///
/// # Errors
/// What is wrong with a name, or with a site.
pub(super) fn hosts(sites: &[Site], has_certificate: bool) -> Result<Hosts, String> {
    let mut hosts = Hosts::default();
    for (site, number) in sites.iter().zip(1..) {
        if site.hosts.is_empty() {
            return Err(format!(
                "site {number}: for which hosts? Write e.g. hosts = [\"example.com\"]"
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
