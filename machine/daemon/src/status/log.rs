//! What the daemon says on standard error, by a thread of its own.
//!
//! Threads that have something to say run above everything, and the reader may be slow, or not there: so a line is left in a short queue, and one
//! that finds no room there is counted, not waited for. Complaints of one kind come each [`COMPLAINT`] at most; ejections one line each.

use std::collections::HashMap;
use std::io::Write;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often the same complaint may be printed.
const COMPLAINT: Duration = Duration::from_secs(10);

/// Lines that wait to be written: what a second's registrations of a user can cause, twice.
const LINES: usize = 128;

/// How long the end waits for lines to be written.
const GRACE: Duration = Duration::from_millis(100);

/// See the module.
#[derive(Debug)]
pub(crate) struct Log {
    lines: Mutex<Option<SyncSender<String>>>,
    complaints: Mutex<HashMap<&'static str, Instant>>,
    lost: Arc<AtomicU64>,
    written: Mutex<Receiver<()>>,
}

impl Log {
    /// Starts the thread. Without one, nothing is said.
    pub(crate) fn start() -> Log {
        let (lines, queue) = sync_channel::<String>(LINES);
        let (done, written) = sync_channel(1);
        let lost = Arc::new(AtomicU64::new(0));
        let missing = Arc::clone(&lost);
        let thread = std::thread::Builder::new()
            .name("upshift-log".into())
            .stack_size(128 * 1024)
            .spawn(move || {
                for line in queue {
                    // `eprintln!` would panic where the reader has gone, or the disk is full.
                    let _ = writeln!(std::io::stderr(), "upshift daemon: {line}");
                    let lost = missing.swap(0, Relaxed);
                    if lost > 0 {
                        let _ =
                            writeln!(std::io::stderr(), "upshift daemon: {lost} lines were lost");
                    }
                }
                // No thread waits for it any more.
                let _ = done.send(());
            });
        Log {
            lines: Mutex::new(thread.is_ok().then_some(lines)),
            complaints: Mutex::default(),
            lost,
            written: Mutex::new(written),
        }
    }

    /// Prints a line.
    pub(crate) fn say(&self, text: String) {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.as_ref().is_none_or(|it| it.try_send(text).is_err()) {
            self.lost.fetch_add(1, Relaxed);
        }
    }

    /// Prints a line, unless one of its kind was printed a short while ago.
    pub(crate) fn complain(&self, kind: &'static str, text: impl FnOnce() -> String) {
        let now = Instant::now();
        let mut complaints = self
            .complaints
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let last = complaints.get(kind);
        if last.is_none_or(|&last| now - last >= COMPLAINT) {
            complaints.insert(kind, now);
            drop(complaints);
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
            // A reader that has not read by then loses the rest.
            let _ = written.recv_timeout(GRACE);
        }
    }
}
