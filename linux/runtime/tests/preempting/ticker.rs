//! The thread that has the kernel pick again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use upshift::Level;

use crate::{build, builder, spin_until};

const NAME: &str = "ticking";

/// How often the ticker has slept so far. It gives itself its name when it first runs, which is waited for.
fn ticks() -> u64 {
    let began = Instant::now();
    loop {
        if let Some(ticks) = ticks_by_now() {
            return ticks;
        }
        assert!(began.elapsed() < Duration::from_secs(10), "no ticker");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn ticks_by_now() -> Option<u64> {
    let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let slept = |folder: std::path::PathBuf| {
        let name = std::fs::read_to_string(folder.join("comm")).ok()?;
        if !name.starts_with(NAME) || !name.contains("/tick") {
            return None;
        }
        let status = std::fs::read_to_string(folder.join("status")).ok()?;
        let mut lines = status.lines();
        let count = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        count.trim().parse::<u64>().ok()
    };
    threads.filter_map(|thread| slept(thread.path())).next()
}

#[test]
fn the_ticker_ticks_while_polls_are_suspended_and_rests_otherwise() {
    let Some(runtime) = build(builder().name(NAME)) else {
        return;
    };
    runtime.block_on(async {
        let before = ticks();
        let began = Instant::now();
        // Something more urgent wakes up behind it, again and again.
        let over = Arc::new(AtomicBool::new(false));
        let seen = over.clone();
        let long = upshift::spawn(async move { spin_until(&seen) }, Level::at::<40>());
        let pings = upshift::spawn(
            async {
                for _ in 0..100 {
                    upshift::time::sleep(Duration::from_millis(2)).await;
                }
            },
            Level::at::<10>(),
        );
        pings.await.unwrap();
        let (ticked, took) = (ticks() - before, began.elapsed());
        assert!(ticked >= 20, "{ticked} in {took:?}");
        // One each millisecond at most.
        let most = took.as_millis() as u64 + 10;
        assert!(ticked <= most, "{ticked} in {took:?}");
        over.store(true, Ordering::Relaxed);
        assert!(long.await.unwrap());
        // Nothing has been suspended for so long that it rests.
        upshift::time::sleep(Duration::from_millis(100)).await;
        let before = ticks();
        for _ in 0..100 {
            upshift::time::sleep(Duration::from_millis(2)).await;
        }
        assert_eq!(ticks(), before);
    });
}
