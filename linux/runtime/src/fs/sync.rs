//! Group commit: calls that wait for the same file share an `fsync`.
//!
//! A call needs an `fsync` that began after the call did, so that it covers everything written
//! before the call. A file has at most one `fsync` in flight, and all calls that come meanwhile
//! wait for the next `fsync`:
//!
//! ```text
//!  running   ├──── fsync 1 ────┤├──── fsync 2 ────┤
//!  calls     a     b   c  d      └ for b, c and d
//! ```
//!
//! * A *round* is an `fsync` and the calls that wait for it. The first call to be polled when no
//!   other round is running *leads*: it starts the operation. When the leader is dropped, the other
//!   calls form a new round, since a cancelled operation guarantees nothing.
//! * A round is as strong as the strongest of its calls: `fsync` if any call wants the attributes,
//!   else `fdatasync`.
//! * An error is reported to every call of the round, because the kernel reports it only once for
//!   each open file.
//! * Two open files are two groups, even if they have one inode, because each has errors of its own
//!   to report.
//!
//! A table of the process has the *group* of each file while a call waits for the file: the file's
//! rounds and the number of calls. A call takes the lock of the table twice.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use upshift_ring::{Fd, op};

use crate::net::{is_cancelled, start};
use crate::sync::{Lock, SetOnce};

/// The groups of the files with waiting calls, by descriptor. A waiting call keeps its descriptor
/// open.
static GROUPS: Lock<BTreeMap<RawFd, Arc<Group>>> = Lock::new(BTreeMap::new());

struct Group(Lock<Rounds>);

#[derive(Default)]
struct Rounds {
    /// Number of calls that have not ended.
    calls: usize,
    running: Option<Arc<Round>>,
    /// The round whose operation has not been started; present while there are calls for it.
    next: Option<Arc<Round>>,
    /// True if a call of `next` wants the attributes too.
    wants_attributes: bool,
    #[cfg(test)]
    started_count: usize,
}

/// The outcome of a round: an errno or 0, or `None` if its leader was dropped.
type Round = SetOnce<Option<i32>>;

/// A call, counted while it lasts.
struct Call {
    number: RawFd,
    group: Arc<Group>,
}

impl Call {
    fn begin(fd: &Fd) -> Call {
        let number = fd.as_raw_fd();
        let new_group = Arc::new(Group(Lock::new(Rounds::default())));
        let mut groups = GROUPS.lock();
        let group = groups.entry(number).or_insert(new_group).clone();
        group.0.lock().calls += 1;
        Call { number, group }
    }

    fn join(&self, with_attributes: bool) -> Arc<Round> {
        let new_round = Arc::new(Round::new());
        let mut rounds = self.group.0.lock();
        rounds.wants_attributes |= with_attributes;
        rounds.next.get_or_insert(new_round).clone()
    }

    /// Returns the next step of a call whose round has not ended.
    fn next_step(&self, own_round: &Arc<Round>) -> Step {
        let mut rounds = self.group.0.lock();
        if let Some(running) = &rounds.running {
            return Step::Wait(running.clone());
        }
        match rounds.next.take_if(|next| Arc::ptr_eq(next, own_round)) {
            Some(next) => {
                rounds.running = Some(next);
                #[cfg(test)]
                {
                    rounds.started_count += 1;
                }
                Step::Lead {
                    with_attributes: std::mem::take(&mut rounds.wants_attributes),
                }
            }
            // The round has run, and its outcome is about to be set.
            None => Step::Wait(own_round.clone()),
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let mut groups = GROUPS.lock();
        let mut rounds = self.group.0.lock();
        rounds.calls -= 1;
        let unused = if rounds.calls == 0 {
            groups.remove(&self.number)
        } else {
            None
        };
        drop(rounds);
        drop(groups);
        drop(unused);
    }
}

enum Step {
    Lead { with_attributes: bool },
    Wait(Arc<Round>),
}

/// The call that has started a round; ends the round when dropped.
struct Leader<'a> {
    call: &'a Call,
    round: &'a Arc<Round>,
    outcome: Option<i32>,
}

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        let ended = self.call.group.0.lock().running.take();
        let _ = self.round.set(self.outcome);
        drop(ended);
    }
}

/// Waits until the data written to the file is on the device; with `with_attributes`, its
/// attributes too.
pub(super) async fn sync(fd: &Fd, with_attributes: bool) -> io::Result<()> {
    let call = Call::begin(fd);
    let mut own_round = call.join(with_attributes);
    loop {
        match call.next_step(&own_round) {
            Step::Lead { with_attributes } => {
                let mut leader = Leader {
                    call: &call,
                    round: &own_round,
                    outcome: None,
                };
                let operation = if with_attributes {
                    op::Fsync::new(fd.clone())
                } else {
                    op::Fsync::data(fd.clone())
                };
                let result = start(operation)?.await;
                leader.outcome = match &result {
                    Ok(()) => Some(0),
                    // The ring is gone, and the operation with it.
                    Err(error) if is_cancelled(error) => None,
                    Err(error) => Some(error.raw_os_error().unwrap_or(libc::EIO)),
                };
                return result;
            }
            Step::Wait(round) => {
                round.wait().await;
            }
        }
        match own_round.get() {
            Some(Some(0)) => return Ok(()),
            Some(Some(errno)) => return Err(io::Error::from_raw_os_error(*errno)),
            Some(None) => own_round = call.join(with_attributes),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests;
