//! Copies a file and shows how far it is. The copy runs at a less urgent level: its I/O has a low
//! priority and it yields at each step, so a more urgent coroutine beside it, here a clock,
//! keeps its time.
//!
//! Run it with `cargo run -p upshift --example copy -- FROM TO`; without arguments it makes a
//! file of 64 MiB in the temporary folder, copies and removes it.

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
            let name = |end| format!("upshift-copy-{}-{end}", std::process::id());
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
    let latest = Arc::new(AtomicU64::new(0));
    let clock = upshift::spawn(tick(latest.clone()), Level::at::<2>());
    let began = Instant::now();
    let copying = upshift::spawn(
        async move {
            let mut shown = 0;
            fs::copy_with(from, to, |progress| {
                let percent = progress.copied * 100 / progress.total.max(1);
                if percent >= shown + 10 {
                    shown = percent - percent % 10;
                    println!("{shown:>3} %");
                }
            })
            .await
        },
        Level::at::<50>(),
    );
    let copied = copying.await.expect("the copy does not panic")?;
    clock.cancel();
    println!(
        "{copied} bytes in {:?}; the clock beside it was at most {} µs late",
        began.elapsed(),
        latest.load(Ordering::Relaxed)
    );
    Ok(())
}

/// Wakes every millisecond and keeps by how many microseconds it was ever late.
async fn tick(latest: Arc<AtomicU64>) {
    loop {
        let due = Instant::now() + Duration::from_millis(1);
        time::sleep_until(due).await;
        latest.fetch_max(due.elapsed().as_micros() as u64, Ordering::Relaxed);
    }
}
