//! A picture of a server at work, taken by its live view while a load runs that is not measured.

use std::time::Duration;

use anyhow::Result;
use upshift_load::SpinPlan;

use super::bench::{Bench, keep_going, planned};
use crate::demo::report::Finding;
use crate::top;

/// A load of so long.
pub(crate) type Load = fn(Duration) -> SpinPlan;

/// When the picture is taken, after the load has begun, and of how much time.
const PICTURE_AFTER: Duration = Duration::from_millis(300);
const PICTURE_LENGTH: Duration = Duration::from_millis(8);
/// How long the load lasts.
const LOAD_LENGTH: Duration = Duration::from_millis(600);

/// How long it takes.
pub(crate) fn plan() -> Duration {
    planned(Duration::ZERO, LOAD_LENGTH)
}

/// The picture of a spin server under a load, or why there is none. An interruption is an error.
pub(crate) fn picture(
    bench: &mut Bench,
    preempt: &str,
    quantum: &str,
    load: Load,
) -> Result<Result<String, Finding>> {
    Ok(keep_going(take(bench, preempt, quantum, load))?
        .map_err(|why| Finding::failed(format!("There is no timeline: {why}."))))
}

fn take(bench: &mut Bench, preempt: &str, quantum: &str, load: Load) -> Result<String> {
    let server = bench.observed_spin_server(32, preempt, quantum)?;
    let pid = server.pid();
    let watcher = std::thread::spawn(move || {
        std::thread::sleep(PICTURE_AFTER);
        top::timeline(pid, PICTURE_LENGTH)
    });
    let mut load = load(LOAD_LENGTH);
    load.warmup = Duration::ZERO;
    let loaded = bench.spin_load("a timeline", &server, &load, plan());
    let timeline = watcher.join();
    server.stop(&bench.stop)?;
    loaded?;
    let timeline = timeline.map_err(|_| anyhow::anyhow!("the viewer panicked"))??;
    Ok(timeline.to_svg())
}
