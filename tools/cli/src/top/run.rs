//! Chooses the process to show and the view.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::args::TopArgs;
use super::attach::{self, Peer};
use super::figures::{self, Frame};
use super::{live, machine, plain, record};

/// Minimum time between two updates.
const MIN_INTERVAL: Duration = Duration::from_millis(50);

pub(crate) fn top(args: &TopArgs) -> Result<()> {
    let interval = args.interval.max(MIN_INTERVAL);
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
            // Attaches before the screen is taken, so that an error can be read.
            Some(pid) => live::Start::Process(Box::new(Peer::of_pid(pid)?)),
            None => live::Start::Choose,
        }
    };
    live::run(start, interval)
}

fn once(args: &TopArgs, interval: Duration) -> Result<()> {
    let text = if args.machine {
        let before = machine::fetch()?;
        std::thread::sleep(interval);
        let now = machine::fetch()?;
        if args.json {
            now.json
        } else {
            machine::text(&now, Some(&before))
        }
    } else {
        let mut peer = peer(args)?;
        let before = peer.fetch()?;
        std::thread::sleep(interval);
        let now = peer.fetch()?;
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

fn peer(args: &TopArgs) -> Result<Peer> {
    match args.pid {
        Some(pid) => Peer::of_pid(pid),
        None => only_peer(),
    }
}

/// Returns the only observable process. If there are several, the error lists them.
fn only_peer() -> Result<Peer> {
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
