//! The flags of `upshift serve`. Flags override the configuration file; a flag and the
//! corresponding field have the same name.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use upshift_serve::{Address, Config, Endpoint, Rule, TlsFiles};

use crate::choice::{SchedulingArgs, Switch};
use crate::values::{self, Cpus};

/// Examples at the end of `upshift serve --help`.
pub(crate) const EXAMPLES: &str =
    "Priority of a request: the first matching --priority rule; else the client's
`Priority: u=0..7, i` (RFC 9218), capped by --ceiling; else u=3. Urgency u is level 4 + 8 u
(one more with i).
Under overload the least urgent are refused first, with 503 and Retry-After.

Examples:
  upshift serve                              the current folder on http://127.0.0.1:8080
  upshift serve site --listen :80            the folder `site` on all addresses, IPv6 and IPv4
  upshift serve --priority '/api=8' --priority 'POST /reports=50' --ceiling 2
  upshift serve --config serve.toml --access-log access.jsonl --control /run/upshift.sock
  upshift serve --config serve.toml --check
  upshift serve --tls-certificate cert.pem --tls-key key.pem --listen 0.0.0.0:443
  upshift serve --control /run/upshift.sock --ask 'reprio 17 4'

SIGTERM and Ctrl-C drain the server: it accepts no new connections, answers the requests in progress
(for at most --drain-timeout) and exits with status 0. SIGHUP reloads configuration and
certificates. The file also sets up several hosts with their folders and certificates, redirects,
header fields, error pages and compression. A rule is CONDITIONS=LEVEL; the conditions are a path,
a method, `header:NAME[:VALUE]` and `peer:NETWORK`, in any combination. See docs/serve.md for
details.";

/// Flags of `upshift serve`.
#[derive(Debug, Clone, Args)]
#[command(mut_arg("preempt", |flag| flag.default_value("on")))]
pub(crate) struct ServeArgs {
    /// Folder to serve [default: the current one]
    #[arg(value_name = "FOLDER")]
    root: Option<PathBuf>,
    /// Address to listen on, a port (`8080` on loopback, `:80` on all addresses), or
    /// `unix:PATH[,mode=660]`; append `,plain` to disable TLS; may be repeated [default:
    /// 127.0.0.1:8080]
    #[arg(long, value_name = "ADDR")]
    listen: Vec<Address>,
    /// Configuration file, reloaded on SIGHUP; flags override it
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Check the configuration, certificates, folders and ports; print one fault per line, and exit
    #[arg(long)]
    pub(crate) check: bool,
    #[command(flatten, next_help_heading = "Priorities")]
    priorities: PriorityArgs,
    #[command(flatten, next_help_heading = "TLS")]
    tls: TlsArgs,
    #[command(flatten, next_help_heading = "Content")]
    content: ContentArgs,
    #[command(flatten, next_help_heading = "Limits")]
    limits: LimitArgs,
    #[command(flatten, next_help_heading = "Operation")]
    pub(crate) operation: OperationArgs,
    #[command(flatten, next_help_heading = "CPUs")]
    pub(crate) cpus: CpuArgs,
    #[command(flatten, next_help_heading = "CPUs")]
    pub(crate) scheduling: SchedulingArgs,
}

/// Priority and refusal of requests.
#[derive(Debug, Clone, Args)]
struct PriorityArgs {
    /// Level of matching requests, e.g. `/api=8` or `POST peer:10.0.0.0/8=40`; the first match
    /// applies
    #[arg(long, value_name = "RULE")]
    priority: Vec<Rule>,
    /// Most urgent `u` that clients may request, 0 to 7 [default: 0]
    #[arg(long, value_name = "U", value_parser = urgency)]
    ceiling: Option<u8>,
    /// Level at which requests are received [default: 2]
    #[arg(long, value_name = "LEVEL", value_parser = values::level)]
    receive_level: Option<u8>,
    /// Refuse requests to computing endpoints that would wait longer than this (files are never
    /// refused) [default: 100ms]
    #[arg(long, value_name = "TIME", value_parser = upshift_units::duration)]
    max_wait: Option<Duration>,
}

/// The certificate.
#[derive(Debug, Clone, Args)]
struct TlsArgs {
    /// Certificate chain (PEM); enables TLS, with HTTP/2 through ALPN
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_certificate: Option<PathBuf>,
    /// Private key of the certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    tls_key: Option<PathBuf>,
}

/// The files and endpoints that are served.
#[derive(Debug, Clone, Args)]
struct ContentArgs {
    /// Built-in endpoints: healthz, metrics, plaintext, matrix; `none` for none [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = endpoint)]
    endpoints: Option<Vec<Option<Endpoint>>>,
    /// File sent with status 200 for paths without a file
    #[arg(long, value_name = "FILE")]
    fallback: Option<String>,
    /// List folders that have no index.html: on or off [default: on]
    #[arg(long, value_enum, hide_possible_values = true)]
    listing: Option<Switch>,
    /// Serve names that begin with a dot: on or off [default: off]
    #[arg(long, value_enum, hide_possible_values = true)]
    hidden: Option<Switch>,
    /// Value of Cache-Control for files
    #[arg(long, value_name = "VALUE")]
    cache_control: Option<String>,
}

/// Limits on the resources of clients.
#[derive(Debug, Clone, Args)]
struct LimitArgs {
    /// Connections in total [default: 10000]
    #[arg(long, value_name = "N", value_parser = values::count)]
    connections: Option<usize>,
    /// Connections per client address [default: 1000]
    #[arg(long, value_name = "N", value_parser = values::count)]
    connections_per_peer: Option<usize>,
    /// Requests per second and client address, 0 for unlimited [default: 0]
    #[arg(long, value_name = "N")]
    request_rate: Option<u32>,
    /// Maximum size of a request head, 8k to 1M [default: 16k]
    #[arg(long, value_name = "SIZE", value_parser = upshift_units::size)]
    header_bytes: Option<u64>,
    /// Maximum size of a request body [default: 1M]
    #[arg(long, value_name = "SIZE", value_parser = upshift_units::size)]
    body_bytes: Option<u64>,
    /// Timeout of a request head and of a TLS handshake [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = upshift_units::duration)]
    header_timeout: Option<Duration>,
    /// Timeout of an idle connection [default: 75s]
    #[arg(long, value_name = "TIME", value_parser = upshift_units::duration)]
    idle_timeout: Option<Duration>,
    /// Timeout between two parts of a request body [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = upshift_units::duration)]
    body_timeout: Option<Duration>,
    /// Timeout of a client that does not read its response [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = upshift_units::duration)]
    write_timeout: Option<Duration>,
    /// Time at shutdown in which the server still accepts, and asks clients to reconnect
    /// [default: 0s]
    #[arg(long, value_name = "TIME", value_parser = upshift_units::duration)]
    drain_delay: Option<Duration>,
    /// Time limit for open connections at shutdown, then they are cut off [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = upshift_units::duration)]
    drain_timeout: Option<Duration>,
}

/// The log and the control socket.
#[derive(Debug, Clone, Args)]
pub(crate) struct OperationArgs {
    /// Access log, one line of JSON per request; `-` for standard output
    #[arg(long, value_name = "FILE")]
    access_log: Option<PathBuf>,
    /// Unix socket for control commands
    #[arg(long, value_name = "SOCKET")]
    pub(crate) control: Option<PathBuf>,
    /// Send a command to the server at --control, print the answer and exit; try `help`
    #[arg(
        long,
        value_name = "COMMAND",
        requires = "control",
        conflicts_with = "check"
    )]
    pub(crate) ask: Option<String>,
}

/// The CPUs that the server uses.
#[derive(Debug, Clone, Args)]
pub(crate) struct CpuArgs {
    /// Number of vCPUs [default: as many as --cpu names, else one per CPU]
    #[arg(long, value_name = "N", value_parser = values::count)]
    pub(crate) vcpus: Option<usize>,
    /// CPUs to run on, as taskset takes them, e.g. `0-3,8`: one vCPU each, in turn
    #[arg(long, value_name = "CPUS", value_parser = values::cpus)]
    pub(crate) cpu: Option<Cpus>,
}

fn urgency(text: &str) -> Result<u8, String> {
    let urgency = text.parse().ok().filter(|urgency| *urgency <= 7);
    urgency.ok_or_else(|| format!("`{text}`: urgencies go from 0 (most urgent) to 7"))
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

/// Overwrites a setting with the value of a flag, if the flag is given.
fn override_with<T: Clone>(setting: &mut T, flag: &Option<T>) {
    if let Some(value) = flag {
        setting.clone_from(value);
    }
}

impl ServeArgs {
    /// Returns the settings of the file, if there is one, overridden by the flags.
    ///
    /// # Errors
    /// The faults, one per line.
    pub(crate) fn settings(&self) -> Result<Config, String> {
        let mut config = match &self.config {
            Some(path) => Config::read(path)?,
            None => Config::default(),
        };
        override_with(&mut config.root, &self.root);
        if !self.listen.is_empty() {
            config.listen.clone_from(&self.listen);
        }
        self.priorities.apply_to(&mut config);
        self.tls.apply_to(&mut config);
        self.content.apply_to(&mut config);
        self.limits.apply_to(&mut config);
        let operation = self.operation.clone();
        config.access_log = operation.access_log.or(config.access_log);
        config.control = operation.control.or(config.control);
        config.check()?;
        Ok(config)
    }
}

impl PriorityArgs {
    fn apply_to(&self, config: &mut Config) {
        // Rules of flags take precedence, so they come first.
        config.priority.splice(0..0, self.priority.iter().cloned());
        override_with(&mut config.ceiling, &self.ceiling);
        override_with(&mut config.receive_level, &self.receive_level);
        override_with(&mut config.admission.max_wait, &self.max_wait);
    }
}

impl TlsArgs {
    fn apply_to(&self, config: &mut Config) {
        if let (Some(certificate), Some(key)) = (&self.tls_certificate, &self.tls_key) {
            config.tls = Some(TlsFiles {
                certificate: certificate.clone(),
                key: key.clone(),
            });
        }
    }
}

impl ContentArgs {
    fn apply_to(&self, config: &mut Config) {
        let is_on = |switch: &Option<Switch>| switch.map(|switch| switch == Switch::On);
        let files = &mut config.files;
        override_with(&mut files.listing, &is_on(&self.listing));
        override_with(&mut files.hidden, &is_on(&self.hidden));
        if self.fallback.is_some() {
            files.fallback.clone_from(&self.fallback);
        }
        if self.cache_control.is_some() {
            files.cache_control.clone_from(&self.cache_control);
        }
        if let Some(endpoints) = &self.endpoints {
            config.endpoints = endpoints.iter().copied().flatten().collect();
        }
    }
}

impl LimitArgs {
    fn apply_to(&self, config: &mut Config) {
        let limits = &mut config.limits;
        override_with(&mut limits.connections, &self.connections);
        override_with(&mut limits.connections_per_peer, &self.connections_per_peer);
        override_with(&mut limits.request_rate, &self.request_rate);
        override_with(&mut limits.header_bytes, &self.header_bytes);
        override_with(&mut limits.body_bytes, &self.body_bytes);
        override_with(&mut limits.header_timeout, &self.header_timeout);
        override_with(&mut limits.idle_timeout, &self.idle_timeout);
        override_with(&mut limits.body_timeout, &self.body_timeout);
        override_with(&mut limits.write_timeout, &self.write_timeout);
        override_with(&mut config.drain_delay, &self.drain_delay);
        override_with(&mut config.drain_timeout, &self.drain_timeout);
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::args::Cli;

    /// Flags without a field in the file, because they control the process itself.
    const PROCESS_FLAGS: [&str; 9] = [
        "ask", "board", "check", "config", "cpu", "help", "preempt", "quantum", "vcpus",
    ];

    fn settings(flags: &str) -> Config {
        use clap::Parser;

        let words = ["upshift", "serve"].into_iter().chain(flags.split(' '));
        let cli = Cli::try_parse_from(words).expect("valid flags");
        let crate::args::Command::Serve(args) = cli.command else {
            panic!("another command")
        };
        args.settings().expect("valid settings")
    }

    #[test]
    fn a_switch_also_takes_the_words_of_the_configuration_file() {
        for flags in ["--listing off --hidden on", "--listing false --hidden true"] {
            let files = settings(flags).files;
            assert!(!files.listing && files.hidden, "{flags}");
        }
    }

    #[test]
    fn a_ceiling_is_an_urgency() {
        assert_eq!(settings("--ceiling 0").ceiling, 0);
        assert_eq!(settings("--ceiling 7").ceiling, 7);
        for text in ["8", "9", "-1", "low"] {
            let error = urgency(text).expect_err("not an urgency");
            let expected = format!("`{text}`: urgencies go from 0 (most urgent) to 7");
            assert_eq!(error, expected);
        }
    }

    #[test]
    fn a_flag_has_the_name_of_its_field() {
        // The error about an unknown field lists the known ones.
        let fields = |section: &str| {
            Config::parse(&format!("{section}\nno-such = 1")).expect_err("an unknown field")
        };
        let known = ["", "[limits]", "[files]", "[admission]"].map(fields);
        let of_tls = fields("[tls]");
        let mut cli = Cli::command();
        cli.build();
        let serve = cli.find_subcommand("serve").expect("a command `serve`");
        for flag in serve.get_opts().filter_map(clap::Arg::get_long) {
            if PROCESS_FLAGS.contains(&flag) {
                continue;
            }
            let is_field = match flag.strip_prefix("tls-") {
                Some(name) => of_tls.contains(&format!("`{name}`")),
                None => known
                    .iter()
                    .any(|known| known.contains(&format!("`{flag}`"))),
            };
            assert!(is_field, "--{flag} is not in {known:?}, {of_tls}");
        }
    }
}
