//! Flags of `upshift daemon`.

use std::path::PathBuf;

use clap::Args;
use clap::builder::UnknownArgumentValueParser;

use crate::values;

/// Flags of `upshift daemon`.
#[derive(Debug, Args)]
#[command(
    after_help = "Without CAP_SYS_NICE the daemon is cooperative: it tells processes which one is most urgent, and the
others yield voluntarily. With CAP_SYS_NICE it runs the most urgent process on each CPU, whatever
the others do. Unregistered programs keep at least 5 % of each CPU.

It listens on --socket, else `socket` in the file, else /run/upshift/daemon.sock (root) or
$XDG_RUNTIME_DIR/upshift/daemon.sock. Mode and group of the socket control access; ceilings limit
levels. Processes find the socket there or through UPSHIFT_DAEMON_SOCKET.

Examples:
  upshift daemon
  upshift daemon --group upshift --mode 0660 --ceiling 16
  upshift daemon --config /etc/upshift/daemon.toml
  upshift daemon --cooperative --socket ~/board.sock
  upshift daemon --check --config /etc/upshift/daemon.toml
  upshift daemon --status

Ctrl-C and SIGTERM restore all threads and end the daemon with status 0; if it dies otherwise, a
guardian process restores them. A configuration file looks like this, every line optional:

  socket = \"/run/upshift/daemon.sock\"
  group = \"upshift\"              # name or number
  mode = \"0660\"
  quantum_us = 4000              # turn of each of several equally urgent processes
  bystander_percent = 5          # of each CPU, for unregistered programs
  bystander_level = 32           # elevate more urgent processes above unregistered ones, too
  ceiling = 16                   # most urgent level of users without a rule

  [[rule]]
  user = \"video\"
  ceiling = 0

  [[rule]]
  group = \"guests\"
  deny = true

  [[assign]]    # unmodified programs; also cgroup, container, label, user, comm
  unit = \"redis.service\"
  level = 8

SIGHUP reloads the file; a file with an error changes nothing."
)]
pub(crate) struct DaemonArgs {
    /// Read the configuration from this TOML file; flags override it
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Socket to listen on
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Permission bits of the socket, octal
    #[arg(long, value_name = "BITS", value_parser = octal)]
    pub(crate) mode: Option<u32>,
    /// Group of the socket, by name or number: its members may connect
    #[arg(long, value_name = "GROUP", value_parser = upshift_daemon::group)]
    pub(crate) group: Option<u32>,
    /// Most urgent level of users without a rule: 0 to 63
    #[arg(long, value_name = "LEVEL", value_parser = values::level)]
    pub(crate) ceiling: Option<u8>,
    /// Elevate no thread, even if permitted: processes yield voluntarily
    #[arg(long)]
    pub(crate) cooperative: bool,
    /// Check the configuration, and list the running processes that each [[assign]] rule matches
    #[arg(long, conflicts_with = "status")]
    pub(crate) check: bool,
    /// Rejects `--start` with a hint: unlike similar commands, this one starts without a flag
    #[arg(long, hide = true, num_args = 0, default_missing_value = "", value_parser = without_flag())]
    start: Option<String>,
    /// Print the state of the running daemon, as JSON, and exit
    #[arg(long, conflicts_with_all = ["mode", "group", "ceiling", "cooperative"])]
    pub(crate) status: bool,
}

fn without_flag() -> UnknownArgumentValueParser {
    UnknownArgumentValueParser::suggest(
        "`upshift daemon` starts the daemon, in the foreground, without a flag",
    )
}

fn octal(text: &str) -> Result<u32, String> {
    u32::from_str_radix(text, 8)
        .ok()
        .filter(|&mode| mode <= 0o777)
        .ok_or_else(|| "give octal permission bits, e.g. 0660".to_string())
}
