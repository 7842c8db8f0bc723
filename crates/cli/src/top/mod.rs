//! `upshift top`: looks at a running process, or at the whole machine.
//!
//! | module | concern |
//! |---|---|
//! | `attach` | which processes can be looked at; asking over the socket |
//! | `figures` | two snapshots become rates, shares and percentiles |
//! | `plain` | these as text, for `--once` |
//! | `record` | a timeline, for `--record` |
//! | `machine` | the census of `upshift daemon` |
//! | `screen` | the terminal: taken, and given back whatever happens |
//! | `live` | keys, time, which page is shown |
//! | `draw`, `draw_machine` | the pages |

mod attach;
mod draw;
mod draw_machine;
mod figures;
mod live;
mod machine;
mod plain;
mod record;
mod screen;

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use upshift::trace::Timeline;

use crate::values;
use attach::Peer;
use figures::Frame;

/// Flags of `upshift top`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  upshift top                    choose one of the observable processes
  upshift top 4711               show this process; ? shows the keys
  upshift top 4711 --once        one table, as text
  upshift top --once --json      the same for scripts, if only one process is observable
  upshift top --machine          show the state of `upshift daemon`
  upshift top 4711 --record a.svg               an image of the states of its coroutines over one second
  upshift top 4711 --record a.json --interval 5s  the same for https://ui.perfetto.dev

A process is observable if it was started with UPSHIFT_OBSERVE=1 (servers of this command: or with
--observe), or if its program calls `Builder::observe(true)`. Only its user can observe it, and root,
by its process id.")]
pub(crate) struct TopArgs {
    /// Process to show
    #[arg(value_name = "PID", value_parser = values::pid)]
    pid: Option<u32>,
    /// Time between two updates
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = upshift_units::positive_duration)]
    interval: Duration,
    /// Print one interval and exit
    #[arg(long)]
    once: bool,
    /// With --once: print JSON (described in docs/observe.md)
    #[arg(long, requires = "once")]
    json: bool,
    /// Record one interval and write the timeline to this file: .json for Perfetto, .svg for an image
    #[arg(long, value_name = "FILE", conflicts_with_all = ["once", "machine"])]
    record: Option<PathBuf>,
    /// Show the processes registered with `upshift daemon`
    #[arg(long, conflicts_with = "pid")]
    machine: bool,
}

/// The shortest time between two looks.
const SHORTEST: Duration = Duration::from_millis(50);

/// Runs `upshift top`.
pub(crate) fn top(args: &TopArgs) -> Result<()> {
    let interval = args.interval.max(SHORTEST);
    if args.once {
        return once(args, interval);
    }
    if let Some(file) = &args.record {
        return record::record(&mut peer(args)?, file, interval);
    }
    if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        bail!("no terminal to draw on: use `upshift top --once`, or `--once --json` for scripts");
    }
    let start = if args.machine {
        live::Start::Machine
    } else {
        match args.pid {
            // Before the screen is taken, so that what is wrong can be read.
            Some(pid) => live::Start::Process(Box::new(Peer::of_pid(pid)?)),
            None => live::Start::Choose,
        }
    };
    live::run(start, interval)
}

fn once(args: &TopArgs, interval: Duration) -> Result<()> {
    let text = if args.machine {
        let before = machine::look()?;
        std::thread::sleep(interval);
        let now = machine::look()?;
        if args.json {
            now.json
        } else {
            machine::text(&now, Some(&before))
        }
    } else {
        let mut peer = peer(args)?;
        let before = peer.look()?;
        std::thread::sleep(interval);
        let now = peer.look()?;
        let frame = Frame::new(&peer, &before, &now);
        if args.json {
            serde_json::to_string_pretty(&figures::Document::new(&frame, &now))?
        } else {
            plain::text(&frame)
        }
    };
    let mut out = io::stdout().lock();
    writeln!(out, "{}", text.trim_end()).context("cannot print")
}

/// A timeline of a process.
pub(crate) fn timeline(pid: u32, length: Duration) -> Result<Timeline> {
    record::timeline(&mut Peer::of_pid(pid)?, length)
}

fn peer(args: &TopArgs) -> Result<Peer> {
    match args.pid {
        Some(pid) => Peer::of_pid(pid),
        None => only_one(),
    }
}

fn only_one() -> Result<Peer> {
    let mut peers = attach::peers()?;
    match peers.len() {
        0 => bail!("{}", attach::NO_PROCESS),
        1 => Ok(peers.remove(0)),
        _ => {
            let mut text = String::from("several processes are observable: choose one of these\n");
            for peer in &peers {
                text.push_str(&format!("  {}  {}\n", peer.pid, peer.command));
            }
            bail!("{}", text.trim_end());
        }
    }
}
