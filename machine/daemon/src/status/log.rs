//! Writes messages to standard error from a separate thread.
//!
//! Threads that print run above all other threads, and the reader of standard error may be slow or
//! absent. So a line is put into a short queue, or counted as lost if the queue is full. Warnings
//! of one kind are printed at most once in [`WARNING_INTERVAL`]; each ejection is printed.

use std::collections::HashMap;
use std::io::Write;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

const WARNING_INTERVAL: Duration = Duration::from_secs(10);

/// Maximum number of lines that wait to be written, which is twice the number of lines that the
/// registrations of one user in one second can cause.
const MAX_LINES: usize = 128;

/// Time for which the drop of the log waits for lines to be written.
const GRACE: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct Log {
    lines: Mutex<Option<SyncSender<String>>>,
    last_warnings: Mutex<HashMap<&'static str, Instant>>,
    lost: Arc<AtomicU64>,
    written: Mutex<Receiver<()>>,
}

impl Log {
    /// Starts the thread that prints. If it cannot be started, nothing is printed.
    pub(crate) fn start() -> Log {
        let (lines, queue) = sync_channel::<String>(MAX_LINES);
        let (done, written) = sync_channel(1);
        let lost = Arc::new(AtomicU64::new(0));
        let missing = Arc::clone(&lost);
        let thread = std::thread::Builder::new()
            .name("upshift-log".into())
            .stack_size(128 * 1024)
            .spawn(move || {
                for line in queue {
                    // `eprintln!` would panic if the reader has gone, or the disk is full.
                    let _ = writeln!(std::io::stderr(), "upshift daemon: {line}");
                    let lost = missing.swap(0, Relaxed);
                    if lost > 0 {
                        let _ =
                            writeln!(std::io::stderr(), "upshift daemon: {lost} lines were lost");
                    }
                }
                // If the log was dropped after a timeout, no thread receives this.
                let _ = done.send(());
            });
        Log {
            lines: Mutex::new(thread.is_ok().then_some(lines)),
            last_warnings: Mutex::default(),
            lost,
            written: Mutex::new(written),
        }
    }

    pub(crate) fn say(&self, text: String) {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines
            .as_ref()
            .is_none_or(|queue| queue.try_send(text).is_err())
        {
            self.lost.fetch_add(1, Relaxed);
        }
    }

    /// Prints a line, unless a line of the same kind was printed recently.
    pub(crate) fn warn(&self, kind: &'static str, text: impl FnOnce() -> String) {
        let now = Instant::now();
        let mut last_warnings = self
            .last_warnings
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let last = last_warnings.get(kind);
        if last.is_none_or(|&last| now - last >= WARNING_INTERVAL) {
            last_warnings.insert(kind, now);
            drop(last_warnings);
            self.say(text());
        }
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        let lines = self.lines.get_mut().unwrap_or_else(PoisonError::into_inner);
        if lines.take().is_some() {
            let written = self
                .written
                .get_mut()
                .unwrap_or_else(PoisonError::into_inner);
            // A reader that takes longer loses the remaining lines.
            let _ = written.recv_timeout(GRACE);
        }
    }
}
