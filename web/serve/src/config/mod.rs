//! The configuration: all settings with their defaults, and the configuration file.
//!
//! Names in the file are the names of the fields, with hyphens. Unknown names are errors. Settings
//! marked *start* are read once; a reload reads all other settings again.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::HeaderValue;
use serde::Deserialize;

use crate::request::host::Hosts;
use crate::request::rules::Rule;

mod address;
pub(crate) mod error_pages;
pub(crate) mod headers;
mod redirect;
mod site;
pub(crate) mod units;

pub use address::{Address, BindTo};
pub use redirect::Redirect;
pub use site::Site;

/// The settings of a server.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct Config {
    /// Addresses, ports or Unix sockets to listen on (*start*); in the file a single string or a
    /// list of strings.
    #[serde(deserialize_with = "address::read_list")]
    pub listen: Vec<Address>,
    /// The folder whose files are served.
    pub root: PathBuf,
    /// Certificate and key. With them the server speaks TLS on each address that is not
    /// [plain](Address::plain); a reload reads the files again.
    pub tls: Option<TlsFiles>,
    /// Built-in endpoints that are enabled.
    pub endpoints: Vec<Endpoint>,
    /// URLs that have moved. The first redirect that matches answers a request that is not for an
    /// endpoint.
    pub redirect: Vec<Redirect>,
    /// Header fields, by name, for every response that does not have them.
    pub headers: BTreeMap<String, String>,
    /// Settings for static files.
    pub files: Files,
    /// Path of the page for each error status (`404`, `50x`, `4xx`), relative to the root. A reload
    /// reads the files again.
    pub error_pages: BTreeMap<String, PathBuf>,
    /// Settings that differ for a few hosts.
    pub site: Vec<Site>,
    /// The level at which requests are read (*start*).
    #[serde(deserialize_with = "units::read_level")]
    pub receive_level: u8,
    /// The most urgent value of `u` (RFC 9218) that clients are granted.
    #[serde(deserialize_with = "units::read_urgency")]
    pub ceiling: u8,
    /// The operator's rules, in order.
    pub priority: Vec<Rule>,
    /// Conditions under which requests are refused.
    pub admission: Admission,
    /// Limits on the resources that clients use.
    pub limits: Limits,
    /// Destination of the access log: a file, or `-` for standard output (*start*; a reload opens
    /// the file again by its name).
    pub access_log: Option<PathBuf>,
    /// The Unix socket on which the server takes commands (*start*).
    pub control: Option<PathBuf>,
    /// Time for which a server that has been told to end still accepts connections. Meanwhile its
    /// responses ask clients to reconnect, which leads them to its successor.
    #[serde(deserialize_with = "units::read_duration")]
    pub drain_delay: Duration,
    /// Maximum time for which a server that ends waits for open connections, that is, for their
    /// requests in progress and for unresponsive clients.
    #[serde(deserialize_with = "units::read_duration")]
    pub drain_timeout: Duration,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            listen: vec![SocketAddr::from(([127, 0, 0, 1], 8080)).into()],
            root: PathBuf::from("."),
            tls: None,
            endpoints: Endpoint::ALL.to_vec(),
            redirect: Vec::new(),
            headers: BTreeMap::new(),
            files: Files::default(),
            error_pages: BTreeMap::new(),
            site: Vec::new(),
            receive_level: 2,
            ceiling: 0,
            priority: Vec::new(),
            admission: Admission::default(),
            limits: Limits::default(),
            access_log: None,
            control: None,
            drain_delay: Duration::ZERO,
            drain_timeout: Duration::from_secs(10),
        }
    }
}

impl Config {
    /// Reads a configuration file.
    ///
    /// # Errors
    /// Returns the faults, one per line, each preceded by the name of the file.
    pub fn read(path: &Path) -> Result<Config, String> {
        let file = path.display();
        let text = std::fs::read_to_string(path)
            .map_err(|error| format!("cannot read {file}: {error}"))?;
        Config::parse(&text).map_err(|faults| {
            let faults = faults.lines().map(|fault| format!("{file}: {fault}"));
            faults.collect::<Vec<_>>().join("\n")
        })
    }

    /// Reads the text of a configuration file.
    ///
    /// # Errors
    /// Returns the faults, one per line. A value that cannot be read is reported as the only fault,
    /// with its line and column.
    pub fn parse(text: &str) -> Result<Config, String> {
        let config: Config = toml::from_str(text).map_err(|error| with_position(text, &error))?;
        config.check()?;
        Ok(config)
    }

    /// Returns the settings marked *start* whose values differ in `other`.
    pub(crate) fn changed_start_settings(&self, other: &Config) -> Vec<&'static str> {
        let changed = [
            ("listen", self.listen != other.listen),
            ("receive-level", self.receive_level != other.receive_level),
            ("access-log", self.access_log != other.access_log),
            ("control", self.control != other.control),
        ];
        let changed = changed.into_iter().filter(|(_, changed)| *changed);
        changed.map(|(name, _)| name).collect()
    }

    /// Checks the values without opening any file.
    ///
    /// # Errors
    /// Returns the faults, one per line.
    pub fn check(&self) -> Result<(), String> {
        let mut faults = Vec::new();
        let mut fault = |is_fault: bool, text: &dyn Fn() -> String| {
            if is_fault {
                faults.push(text());
            }
        };
        let Limits {
            header_bytes,
            headers,
            ..
        } = self.limits;
        fault(self.listen.is_empty(), &|| {
            "listen = []: there is no address to listen on".into()
        });
        fault(self.receive_level > 63, &|| {
            format!("receive-level = {}: {}", self.receive_level, units::LEVELS)
        });
        fault(self.ceiling > 7, &|| {
            format!("ceiling = {}: {}", self.ceiling, units::URGENCIES)
        });
        fault(!(8192..=1 << 20).contains(&header_bytes), &|| {
            format!("header-bytes = {header_bytes}: use 8k to 1M")
        });
        fault(!(1..=10_000).contains(&headers), &|| {
            format!("headers = {headers}: use 1 to 10000")
        });
        for (name, is_zero) in [
            ("connections", self.limits.connections == 0),
            (
                "connections-per-peer",
                self.limits.connections_per_peer == 0,
            ),
            ("streams", self.limits.streams == 0),
            ("in-flight", self.admission.in_flight == 0),
        ] {
            fault(is_zero, &|| {
                format!("{name} = 0: no connection would be served; use 1 or more")
            });
        }
        faults.extend(
            self.redirect
                .iter()
                .filter_map(|redirect| redirect.check().err()),
        );
        for (fields, files, pages) in self.site_parts() {
            faults.extend(fields.and_then(|fields| headers::read(fields).err()));
            faults.extend(files.and_then(|files| files.check().err()));
            faults.extend(pages.and_then(|pages| error_pages::check(pages).err()));
        }
        faults.extend(self.hosts().err());
        if faults.is_empty() {
            return Ok(());
        }
        Err(faults.join("\n"))
    }

    /// Returns warnings about settings that are valid but probably not intended.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let site_rules = self.site.iter().flat_map(|site| &site.priority);
        let rules = self.priority.iter().chain(site_rules);
        let mut warnings: Vec<_> = rules.filter_map(Rule::warning).collect();
        if self.tls.is_none()
            && let Some(plain) = self.listen.iter().find(|address| address.plain)
        {
            warnings.push(format!(
                "listen = \"{plain}\": without `tls` every address is plain"
            ));
        }
        warnings
    }

    /// Returns, for the server and then for each site, the settings that are checked in the same
    /// way.
    fn site_parts(&self) -> impl Iterator<Item = SiteParts<'_>> {
        let server_parts = (
            Some(&self.headers),
            Some(&self.files),
            Some(&self.error_pages),
        );
        let sites = self.site.iter().map(|site| {
            (
                site.headers.as_ref(),
                site.files.as_ref(),
                site.error_pages.as_ref(),
            )
        });
        std::iter::once(server_parts).chain(sites)
    }

    /// Returns the table of the hosts. Site 0 serves all hosts that no site names; the configured
    /// sites count from 1.
    ///
    /// # Errors
    /// Returns the first fault of a site or of one of its names.
    pub(crate) fn hosts(&self) -> Result<Hosts, String> {
        site::hosts(&self.site, self.tls.is_some())
    }
}

/// Header fields, files and error pages of a site.
type SiteParts<'a> = (
    Option<&'a BTreeMap<String, String>>,
    Option<&'a Files>,
    Option<&'a error_pages::ErrorPages>,
);

/// Formats an error in one line, with its line and column in the text.
fn with_position(text: &str, error: &toml::de::Error) -> String {
    let message =
        suggest_table(error.message()).unwrap_or_else(|| error.message().replace('\n', "; "));
    let Some(span) = error.span() else {
        return message;
    };
    let before = text.get(..span.start).unwrap_or(text);
    let line = 1 + before.matches('\n').count();
    let column = 1 + before.chars().rev().take_while(|c| *c != '\n').count();
    format!("line {line}, column {column}: {message}")
}

/// The tables of the file; the empty text is the top-level table.
const TABLES: [&str; 8] = [
    "",
    "[tls]",
    "[files]",
    "[admission]",
    "[limits]",
    "[[priority]]",
    "[[redirect]]",
    "[[site]]",
];

/// Converts an error about an unknown field to one that names the tables in which the field is
/// valid. Returns `None` if `message` is another error, or if no table has the field.
fn suggest_table(message: &str) -> Option<String> {
    let unknown = |message: &str| {
        let name = message.strip_prefix("unknown field `")?.split('`').next()?;
        Some(name.to_owned())
    };
    let name = unknown(message)?;
    let is_bare = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    if name.is_empty() || !name.chars().all(is_bare) {
        return None;
    }
    // No field is a date, so every table reports an error. A table that has the field reports
    // another error than "unknown field".
    let knows_name = |table: &&str| {
        let read = toml::from_str::<Config>(&format!("{table}\n{name} = 2000-01-01"));
        read.is_err_and(|error| unknown(error.message()).is_none())
    };
    let places = TABLES
        .into_iter()
        .filter(knows_name)
        .map(|table| match table {
            "" => "at the top of the file, before the first table".to_owned(),
            table => format!("in `{table}`"),
        });
    let places = places.collect::<Vec<_>>().join(" or ");
    (!places.is_empty()).then(|| format!("unknown field `{name}` here: it belongs {places}"))
}

/// A certificate chain and its private key, as PEM files.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsFiles {
    /// File of the chain, the server's own certificate first.
    pub certificate: PathBuf,
    /// File of the key.
    pub key: PathBuf,
}

/// A built-in endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Endpoint {
    /// `/healthz`: 200, or 503 while draining.
    Healthz,
    /// `/metrics`: Prometheus text.
    Metrics,
    /// `/plaintext`: the text `Hello, World!`, which costs almost nothing.
    Plaintext,
    /// `/matrix?n=`: the product of two n × n matrices, as an example of a computation.
    Matrix,
}

impl Endpoint {
    /// All built-in endpoints.
    pub const ALL: [Endpoint; 4] = [
        Endpoint::Healthz,
        Endpoint::Metrics,
        Endpoint::Plaintext,
        Endpoint::Matrix,
    ];

    /// Returns the path of the endpoint.
    #[must_use]
    pub fn path(self) -> &'static str {
        match self {
            Endpoint::Healthz => "/healthz",
            Endpoint::Metrics => "/metrics",
            Endpoint::Plaintext => "/plaintext",
            Endpoint::Matrix => "/matrix",
        }
    }
}

/// Settings for static files.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct Files {
    /// Name of the file that is served for a folder, if it exists.
    pub index: String,
    /// File that is sent, with status 200, for every path without a file. It is the page of an
    /// application that routes in the browser. Relative to the root.
    pub fallback: Option<String>,
    /// Whether folders that have no index file are listed.
    #[serde(deserialize_with = "units::read_switch")]
    pub listing: bool,
    /// Whether names that begin with a dot are served.
    #[serde(deserialize_with = "units::read_switch")]
    pub hidden: bool,
    /// Whether clients that accept `name.br` or `name.gz` receive it for `name`.
    #[serde(deserialize_with = "units::read_switch")]
    pub precompressed: bool,
    /// Whether texts without a precompressed file are compressed for clients that accept gzip.
    #[serde(deserialize_with = "units::read_switch")]
    pub compress: bool,
    /// Minimum size in bytes of the files that are compressed.
    #[serde(deserialize_with = "units::read_size")]
    pub compress_from: u64,
    /// Value of the `Cache-Control` field; by default the field is not sent.
    pub cache_control: Option<String>,
}

impl Files {
    fn check(&self) -> Result<(), String> {
        match &self.cache_control {
            Some(value) if HeaderValue::from_str(value).is_err() => Err(format!(
                "cache-control = {value:?}: this cannot be the value of a header"
            )),
            _ => match &self.fallback {
                Some(file) if file.starts_with('/') => Err(format!(
                    "fallback = {file:?}: names are relative to the root; write {:?}",
                    file.trim_start_matches('/')
                )),
                _ => Ok(()),
            },
        }
    }
}

impl Default for Files {
    fn default() -> Files {
        Files {
            index: "index.html".into(),
            fallback: None,
            listing: true,
            hidden: false,
            precompressed: true,
            compress: false,
            compress_from: 1024,
            cache_control: None,
        }
    }
}

/// Conditions under which requests are refused with 503. Each level has its own gate.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct Admission {
    /// Maximum time for which requests of a level may wait for a vCPU before further requests are
    /// refused. Applies to requests to a service and for a matrix. Files are exempt, since sending
    /// them costs little.
    #[serde(deserialize_with = "units::read_duration")]
    pub max_wait: Duration,
    /// Maximum number of requests of a level in progress.
    #[serde(deserialize_with = "units::read_count")]
    pub in_flight: u32,
}

impl Default for Admission {
    fn default() -> Admission {
        Admission {
            max_wait: Duration::from_millis(100),
            in_flight: 4096,
        }
    }
}

/// Limits on the resources that clients use. A time of zero means no limit.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct Limits {
    /// Total number of connections.
    #[serde(deserialize_with = "units::read_count")]
    pub connections: usize,
    /// Number of connections of one address (of one /64 network in IPv6).
    #[serde(deserialize_with = "units::read_count")]
    pub connections_per_peer: usize,
    /// Maximum size in bytes of a request's head.
    #[serde(deserialize_with = "units::read_size")]
    pub header_bytes: u64,
    /// Number of header fields of a request.
    #[serde(deserialize_with = "units::read_count")]
    pub headers: usize,
    /// Maximum size in bytes of a request's body.
    #[serde(deserialize_with = "units::read_size")]
    pub body_bytes: u64,
    /// Number of concurrent requests on one HTTP/2 connection.
    #[serde(deserialize_with = "units::read_count")]
    pub streams: u32,
    /// Maximum time for the head of a request, and for a TLS handshake.
    #[serde(deserialize_with = "units::read_duration")]
    pub header_timeout: Duration,
    /// Maximum time for which a connection may have no request.
    #[serde(deserialize_with = "units::read_duration")]
    pub idle_timeout: Duration,
    /// Maximum wait for the next part of a request's body. After a total wait of this length, the
    /// body must also arrive at 1 KiB/s or more.
    #[serde(deserialize_with = "units::read_duration")]
    pub body_timeout: Duration,
    /// Maximum time for which a client may take no part of its response.
    #[serde(deserialize_with = "units::read_duration")]
    pub write_timeout: Duration,
    /// Requests per second of one address (of one /64 network in IPv6), with a burst of the same
    /// number; 0 sets no limit.
    #[serde(deserialize_with = "units::read_count")]
    pub request_rate: u32,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: 10_000,
            connections_per_peer: 1000,
            header_bytes: 16 * 1024,
            headers: 100,
            body_bytes: 1 << 20,
            streams: 128,
            header_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(75),
            body_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(30),
            request_rate: 0,
        }
    }
}

#[cfg(test)]
mod tests;
