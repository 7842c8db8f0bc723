//! Copies a file and prints the progress. The copy runs at a less urgent level: its I/O has a low
//! priority and it yields at each step, so a more urgent coroutine beside it, here a clock, is not
//! delayed.
//!
//! Run it with `cargo run -p upshift --example copy -- FROM TO`. Without arguments, the example
//! creates a file of 64 MiB in the temporary directory, copies it, and removes both files.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use upshift::fs;
use upshift::{Level, time};

#[upshift::main]
async fn main() -> io::Result<()> {
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    match arguments.as_slice() {
        [from, to] => copy(from.clone(), to.clone()).await,
        [] => {
            let name = |suffix| format!("upshift-copy-{}-{suffix}", std::process::id());
            let from = std::env::temp_dir().join(name("from"));
            let to = std::env::temp_dir().join(name("to"));
            fs::write(&from, vec![7; 64 << 20]).await?;
            let result = copy(from.clone(), to.clone()).await;
            fs::remove_file(from).await?;
            fs::remove_file(to).await?;
            result
        }
        _ => Err(io::Error::other("usage: copy FROM TO")),
    }
}

async fn copy(from: PathBuf, to: PathBuf) -> io::Result<()> {
    let max_delay_us = Arc::new(AtomicU64::new(0));
    let clock = upshift::spawn(tick(max_delay_us.clone()), Level::at::<2>());
    let start = Instant::now();
    let copy_handle = upshift::spawn(
        async move {
            let mut printed_percent = 0;
            fs::copy_with(from, to, |progress| {
                let percent = progress.copied * 100 / progress.total.max(1);
                if percent >= printed_percent + 10 {
                    printed_percent = percent - percent % 10;
                    println!("{printed_percent:>3} %");
                }
            })
            .await
        },
        Level::at::<50>(),
    );
    let byte_count = copy_handle.await.expect("the copy panicked")?;
    clock.cancel();
    println!(
        "{byte_count} bytes in {:?}; the clock beside it was at most {} µs late",
        start.elapsed(),
        max_delay_us.load(Ordering::Relaxed)
    );
    Ok(())
}

/// Wakes every millisecond and records the largest delay, in microseconds.
async fn tick(max_delay_us: Arc<AtomicU64>) {
    loop {
        let due = Instant::now() + Duration::from_millis(1);
        time::sleep_until(due).await;
        max_delay_us.fetch_max(due.elapsed().as_micros() as u64, Ordering::Relaxed);
    }
}
