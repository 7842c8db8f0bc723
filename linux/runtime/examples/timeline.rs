//! Draws the states of a program's coroutines over time, by vCPU and by level, as in the
//! SharedScheduler papers.
//!
//! Two vCPUs serve three kinds of work: a timer of level 0, every millisecond; requests of level 8,
//! which arrive in bursts through a channel and are each served by a coroutine; and computations of
//! level 40 in the background.
//!
//! ```text
//! cargo run --release -p upshift --example timeline
//! ```
//!
//! The example writes `timeline.svg`, a picture, and `timeline.json`, which
//! <https://ui.perfetto.dev> opens.

use std::fs::File;
use std::io::BufWriter;
use std::time::{Duration, Instant};

use upshift::sync::mpsc;
use upshift::{Level, spawn, time, yield_if_needed};

const TIMER: Level = Level::at::<0>();
const REQUEST: Level = Level::at::<8>();
const BACKGROUND: Level = Level::at::<40>();

/// Computes for `total`, and yields to more urgent work.
async fn compute(total: Duration) {
    let slice = Duration::from_micros(50);
    for _ in 0..total.as_micros() / slice.as_micros() {
        let start = Instant::now();
        while start.elapsed() < slice {
            std::hint::spin_loop();
        }
        yield_if_needed().await;
    }
}

async fn tick() {
    let mut interval = time::interval(Duration::from_millis(1));
    for _ in 0..20 {
        interval.tick().await;
        compute(Duration::from_micros(100)).await;
    }
}

async fn serve(mut requests: mpsc::Receiver<Duration>) {
    while let Some(work) = requests.recv().await {
        spawn(compute(work), REQUEST).detach();
    }
}

async fn send(requests: mpsc::Sender<Duration>) {
    for burst in 0..4 {
        for n in 1..=burst + 2 {
            let work = Duration::from_micros(200 * n);
            if requests.send(work).await.is_err() {
                return;
            }
        }
        time::sleep(Duration::from_millis(4)).await;
    }
}

fn main() -> std::io::Result<()> {
    let runtime = upshift::Runtime::builder()
        .vcpus(2)
        .name("timeline")
        .build()?;
    let trace = runtime.handle().trace();
    trace.start(100_000)?;
    runtime.block_on(async {
        let (sender, receiver) = mpsc::channel(16);
        let timer = spawn(tick(), TIMER);
        let server = spawn(serve(receiver), REQUEST);
        let client = spawn(send(sender), BACKGROUND);
        for _ in 0..2 {
            spawn(compute(Duration::from_millis(6)), BACKGROUND).detach();
        }
        for task in [timer, server, client] {
            task.await.expect("a coroutine of the example panicked");
        }
    });
    trace.stop();
    let timeline = trace.snapshot();
    timeline.write_chrome(BufWriter::new(File::create("timeline.json")?))?;
    std::fs::write("timeline.svg", timeline.to_svg())?;
    println!(
        "timeline.svg, timeline.json: {} events",
        timeline.events.len()
    );
    Ok(())
}
