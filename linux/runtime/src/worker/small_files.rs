//! Small files whose reads share a system call of the ring.

use std::path::Path;
use std::time::Duration;

use upshift_ring::op::ReadSmall;
use upshift_ring::{Ring, Submission};

use super::{REAP_INTERVALS, Worker, more_urgent_than};

/// Time of a small cached file in a system call that many share, ns. Nothing of the ring is seen
/// meanwhile, so as many are gathered as take no longer than may pass unseen anyway:
/// [`REAP_INTERVALS`], or one beside something more urgent.
const FILE_TIME: u128 = 3_300;

/// Small files that take one reap interval.
fn files_per_reap(interval: Duration) -> usize {
    let files = interval.as_nanos() / FILE_TIME;
    usize::try_from(files).map_or(Ring::SMALL_FILES, |files| files.clamp(1, Ring::SMALL_FILES))
}

impl Worker {
    /// May other coroutines read a small file in the same system call? For one file that costs more
    /// than the three calls that it stands for.
    pub(crate) fn shares_files(&self) -> bool {
        self.outbox.has_files() || self.executor.bitmap() != 0
    }

    /// Starts to read a small file at the level of the calling coroutine; see
    /// [`Ring::read_small`].
    pub(crate) fn start_small(
        &self,
        path: &Path,
        waits: bool,
        ioprio: u16,
    ) -> Option<Submission<ReadSmall>> {
        let level = self.executor.running_level().unwrap_or_default().get();
        let submission = self.ring.read_small(path, waits, ioprio, level)?;
        self.outbox.add(level);
        if self.ring.retired() != 0 {
            self.shared.report_retired();
        }
        if !waits {
            let may_pass = match self.ring.levels_in_flight() & more_urgent_than(level) {
                0 => REAP_INTERVALS as usize,
                _ => 1,
            };
            let per_reap = files_per_reap(self.shared.settings.reap_interval);
            self.outbox
                .add_file((per_reap * may_pass).min(Ring::SMALL_FILES));
        }
        Some(submission)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_files_are_gathered_as_one_interval_has_room_for() {
        let files = |micros| files_per_reap(Duration::from_micros(micros));
        assert_eq!([0, 1, 20, 50].map(files), [1, 1, 6, 15]);
        assert_eq!(files_per_reap(Duration::MAX), Ring::SMALL_FILES);
    }
}
