//! The state of processes, which any program may query for any process.

use alloc::sync::Arc;

use os_abi::ProcessStatus;
use upshift_core::Level;

use super::threads::ThreadState;
use super::{Process, table};
use crate::run_queue::{self, Position};

/// Returns the state of the first process whose table slot is not below `from`, and the slot plus
/// 1.
pub(crate) fn status(from: usize) -> Option<(usize, ProcessStatus)> {
    let (slot, process): (usize, Arc<Process>) = table::from_slot(from)?;
    Some((slot + 1, process.status()))
}

impl Process {
    fn status(&self) -> ProcessStatus {
        let bytes = self.name.as_bytes();
        let len = bytes.len().min(ProcessStatus::NAME);
        let mut name = [0; ProcessStatus::NAME];
        name[..len].copy_from_slice(&bytes[..len]);
        let mut status = ProcessStatus {
            number: self.number() as u64,
            parent: self.identity.parent() as u64,
            level: 0,
            ceiling: u64::from(self.ceiling.get()),
            threads: 0,
            running: 0,
            ready: 0,
            ended: u64::from(self.is_ended()),
            name_len: len as u64,
            name,
        };
        let mut most_urgent = Level::LEAST_URGENT.get();
        let threads = self.threads.lock();
        for thread in threads.states() {
            let level = match thread {
                ThreadState::Waiting(level) => level.get(),
                ThreadState::Runnable(slot) => match run_queue::position(self, slot) {
                    Some(Position::Ready(level)) => {
                        status.ready += 1;
                        level
                    }
                    Some(Position::Running(level)) => {
                        status.running += 1;
                        level
                    }
                    // The thread is between a hart and the queue.
                    None => most_urgent,
                },
            };
            status.threads += 1;
            most_urgent = most_urgent.min(level);
        }
        status.level = u64::from(most_urgent);
        status
    }
}
