//! The flags of `upshift serve`. They override the configuration file.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use upshift_serve::{Address, Config, Endpoint, Rule, TlsFiles};

use crate::choice::SchedulingArgs;
use crate::values;

/// The end of `upshift serve --help`.
pub(crate) const EXAMPLES: &str = "Priority of a request: the first matching --priority rule; else the client's `Priority: u=0..7, i`
(RFC 9218), capped by --ceiling; else u=3. Urgency u is level 4 + 8 u (one more with i).
Under overload the least urgent are refused first, with 503 and Retry-After.

Examples:
  upshift serve                              the current folder on http://127.0.0.1:8080
  upshift serve site --listen :80            the folder `site` on all addresses, IPv6 and IPv4
  upshift serve --priority '/api=8' --priority 'POST /reports=50' --ceiling 2
  upshift serve --config serve.toml --access-log access.jsonl --control /run/upshift.sock
  upshift serve --tls-cert cert.pem --tls-key key.pem --listen 0.0.0.0:443
  upshift serve --control /run/upshift.sock --ask 'reprio 17 4'

SIGTERM and Ctrl-C drain: no new connections, requests in progress are answered (for at most
--drain-timeout), status 0. SIGHUP reloads configuration and certificates. The configuration file also
sets up several hosts with their folders and certificates, error pages and compression. A rule is
CONDITIONS=LEVEL: a path, a method, `header:NAME[:VALUE]`, `peer:NETWORK`, in any combination.
See docs/serve.md for details.";

/// Flags of `upshift serve`.
#[derive(Debug, Clone, Args)]
#[command(mut_arg("preempt", |flag| flag.default_value("on")))]
pub(crate) struct ServeArgs {
    /// Folder to serve [default: the current one]
    #[arg(value_name = "FOLDER")]
    root: Option<PathBuf>,
    /// Address to listen on, a port (`8080` on loopback, `:80` on all addresses), or `unix:PATH[,mode=660]`; may be repeated
    /// [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDR")]
    listen: Vec<Address>,
    /// Configuration file, reloaded on SIGHUP; flags override it
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Level of matching requests, e.g. `/api=8` or `POST peer:10.0.0.0/8=40`; the first match applies
    #[arg(long, value_name = "RULE", help_heading = "Priorities")]
    priority: Vec<Rule>,
    /// Most urgent `u` that clients may request, 0 to 7 [default: 0]
    #[arg(long, value_name = "U", help_heading = "Priorities", value_parser = clap::value_parser!(u8).range(0..8))]
    ceiling: Option<u8>,
    /// Level at which requests are received [default: 2]
    #[arg(long, value_name = "LEVEL", help_heading = "Priorities", value_parser = values::level)]
    receive_level: Option<u8>,
    /// Refuse requests that compute and would wait longer than this; not files [default: 100ms]
    #[arg(long, value_name = "TIME", help_heading = "Priorities", value_parser = upshift_units::duration)]
    max_wait: Option<Duration>,
    /// Certificate chain (PEM); enables TLS, with HTTP/2 through ALPN
    #[arg(long, value_name = "FILE", help_heading = "TLS", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Private key of the certificate (PEM)
    #[arg(long, value_name = "FILE", help_heading = "TLS", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Built-in endpoints: healthz, metrics, plaintext, matrix; `none` for none [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',', help_heading = "Content", value_parser = endpoint)]
    endpoints: Option<Vec<Option<Endpoint>>>,
    /// Do not list folders that have no index.html
    #[arg(long, help_heading = "Content")]
    no_listing: bool,
    /// Serve names that begin with a dot
    #[arg(long, help_heading = "Content")]
    hidden: bool,
    /// Value of Cache-Control for files
    #[arg(long, value_name = "VALUE", help_heading = "Content")]
    cache_control: Option<String>,
    /// Connections in total [default: 10000]
    #[arg(long, value_name = "N", help_heading = "Limits", value_parser = values::count)]
    max_connections: Option<usize>,
    /// Connections per client address [default: 1000]
    #[arg(long, value_name = "N", help_heading = "Limits", value_parser = values::count)]
    max_per_peer: Option<usize>,
    /// Requests per second and client address, 0 for unlimited [default: 0]
    #[arg(long, value_name = "N", help_heading = "Limits")]
    request_rate: Option<u32>,
    /// Maximum size of a request head, 8k to 1M [default: 16k]
    #[arg(long, value_name = "SIZE", help_heading = "Limits", value_parser = upshift_units::size)]
    max_header: Option<u64>,
    /// Maximum size of a request body [default: 1M]
    #[arg(long, value_name = "SIZE", help_heading = "Limits", value_parser = upshift_units::size)]
    max_body: Option<u64>,
    /// Timeout of a request head and of a TLS handshake [default: 10s]
    #[arg(long, value_name = "TIME", help_heading = "Limits", value_parser = upshift_units::duration)]
    header_timeout: Option<Duration>,
    /// Timeout of an idle connection [default: 75s]
    #[arg(long, value_name = "TIME", help_heading = "Limits", value_parser = upshift_units::duration)]
    idle_timeout: Option<Duration>,
    /// Timeout between two parts of a request body [default: 30s]
    #[arg(long, value_name = "TIME", help_heading = "Limits", value_parser = upshift_units::duration)]
    body_timeout: Option<Duration>,
    /// Timeout of a client that does not read its response [default: 30s]
    #[arg(long, value_name = "TIME", help_heading = "Limits", value_parser = upshift_units::duration)]
    write_timeout: Option<Duration>,
    /// At shutdown, continue to accept for this time while asking clients to reconnect [default: 0s]
    #[arg(long, value_name = "TIME", help_heading = "Limits", value_parser = upshift_units::duration)]
    drain_delay: Option<Duration>,
    /// Time limit for open connections at shutdown, then they are cut off [default: 10s]
    #[arg(long, value_name = "TIME", help_heading = "Limits", value_parser = upshift_units::duration)]
    drain_timeout: Option<Duration>,
    /// Access log, one line of JSON per request; `-` for standard output
    #[arg(long, value_name = "FILE", help_heading = "Operation")]
    access_log: Option<PathBuf>,
    /// Unix socket for control commands
    #[arg(long, value_name = "SOCKET", help_heading = "Operation")]
    pub(crate) control: Option<PathBuf>,
    /// Send a command to the server at --control, print the answer and exit; try `help`
    #[arg(
        long,
        value_name = "COMMAND",
        help_heading = "Operation",
        requires = "control"
    )]
    pub(crate) ask: Option<String>,
    /// Number of vCPUs [default: as many as --pin names, else one per CPU]
    #[arg(long, value_name = "N", help_heading = "CPUs", value_parser = values::count)]
    pub(crate) vcpus: Option<usize>,
    /// CPUs to run on, e.g. `0,1`: one vCPU each, in turn
    #[arg(long, value_name = "CPUS", help_heading = "CPUs", value_delimiter = ',', value_parser = values::cpu)]
    pub(crate) pin: Vec<usize>,
    #[command(flatten, next_help_heading = "CPUs")]
    pub(crate) scheduling: SchedulingArgs,
}

fn endpoint(word: &str) -> Result<Option<Endpoint>, String> {
    if word == "none" {
        return Ok(None);
    }
    Endpoint::ALL
        .into_iter()
        .find(|endpoint| endpoint.path().strip_prefix('/') == Some(word))
        .map(Some)
        .ok_or_else(|| format!("`{word}`: use healthz, metrics, plaintext, matrix or none"))
}

impl ServeArgs {
    /// The settings of the file, if there is one, with what the flags say.
    pub(crate) fn settings(&self) -> Result<Config, String> {
        let mut config = match &self.config {
            Some(path) => Config::read(path)?,
            None => Config::default(),
        };
        fn put<T: Clone>(place: &mut T, flag: &Option<T>) {
            if let Some(value) = flag {
                *place = value.clone();
            }
        }
        put(&mut config.root, &self.root);
        put(&mut config.ceiling, &self.ceiling);
        put(&mut config.receive_level, &self.receive_level);
        put(&mut config.admission.max_wait, &self.max_wait);
        put(&mut config.limits.connections, &self.max_connections);
        put(&mut config.limits.connections_per_peer, &self.max_per_peer);
        put(&mut config.limits.request_rate, &self.request_rate);
        put(&mut config.limits.header_bytes, &self.max_header);
        put(&mut config.limits.body_bytes, &self.max_body);
        put(&mut config.limits.header_timeout, &self.header_timeout);
        put(&mut config.limits.idle_timeout, &self.idle_timeout);
        put(&mut config.limits.body_timeout, &self.body_timeout);
        put(&mut config.limits.write_timeout, &self.write_timeout);
        put(&mut config.drain_delay, &self.drain_delay);
        put(&mut config.drain_timeout, &self.drain_timeout);
        if !self.listen.is_empty() {
            config.listen.clone_from(&self.listen);
        }
        // Flags go before the file, so they come first.
        let mut rules = self.priority.clone();
        rules.append(&mut config.priority);
        config.priority = rules;
        if let (Some(certificate), Some(key)) = (&self.tls_cert, &self.tls_key) {
            config.tls = Some(TlsFiles {
                certificate: certificate.clone(),
                key: key.clone(),
            });
        }
        if let Some(endpoints) = &self.endpoints {
            config.endpoints = endpoints.iter().copied().flatten().collect();
        }
        config.files.listing &= !self.no_listing;
        config.files.hidden |= self.hidden;
        if self.cache_control.is_some() {
            config.files.cache_control.clone_from(&self.cache_control);
        }
        if self.access_log.is_some() {
            config.access_log.clone_from(&self.access_log);
        }
        if self.control.is_some() {
            config.control.clone_from(&self.control);
        }
        config.check()?;
        Ok(config)
    }
}
