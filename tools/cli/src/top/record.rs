//! `--record FILE`: records a timeline of a process, in the format of the file's extension.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use upshift::trace::Timeline;

use super::attach::Peer;

/// Interval of keep-alive requests, which are needed because the process drops a viewer that is
/// silent for a minute.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(20);

#[derive(Clone, Copy)]
enum Form {
    Chrome,
    Svg,
}

/// Records for `interval` and writes `file`. The file is created first, so that a wrong path fails
/// early.
pub(super) fn record(peer: &mut Peer, file: &Path, interval: Duration) -> Result<()> {
    let form = match file.extension().and_then(|extension| extension.to_str()) {
        Some("json") => Form::Chrome,
        Some("svg") => Form::Svg,
        _ => bail!(
            "--record {}: name a file that ends in .json (for https://ui.perfetto.dev) or .svg (a picture)",
            file.display()
        ),
    };
    let failed = || format!("cannot write {}", file.display());
    let out = File::create(file).with_context(failed)?;
    let timeline = timeline(peer, interval)?;
    write(&timeline, form, out).with_context(failed)?;
    let mut stdout = io::stdout().lock();
    writeln!(
        stdout,
        "{}: {} events in {:.3} s on {} vCPUs{}",
        file.display(),
        timeline.events.len(),
        timeline.length as f64 / 1e9,
        timeline.vcpus,
        match timeline.lost {
            0 => String::new(),
            lost => format!("; the {lost} events before them are lost: only the end was recorded"),
        }
    )
    .context("cannot print")
}

/// Records the process during the next `interval`.
pub(super) fn timeline(peer: &mut Peer, interval: Duration) -> Result<Timeline> {
    peer.begin_recording()?;
    let end = Instant::now() + interval;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        std::thread::sleep(left.min(KEEP_ALIVE_INTERVAL));
        if left > KEEP_ALIVE_INTERVAL {
            peer.fetch()?;
        }
    }
    let mut timeline = peer.end_recording()?;
    // The process may send events in any order.
    timeline.sort();
    timeline.name = format!("{} ({})", timeline.name, peer.pid);
    Ok(timeline)
}

fn write(timeline: &Timeline, form: Form, out: File) -> io::Result<()> {
    let mut out = BufWriter::new(out);
    match form {
        Form::Chrome => timeline.write_chrome(&mut out)?,
        Form::Svg => out.write_all(timeline.to_svg().as_bytes())?,
    }
    out.flush()
}
