//! Group commit: calls that wait for the same file share an `fsync`.
//!
//! A call needs one that began after it did, for what was written before the call to be in it. So a file has at most one `fsync` under
//! way, and every call that comes meanwhile waits for the next, all of them for the same one:
//!
//! ```text
//!  running   ├──── fsync 1 ────┤├──── fsync 2 ────┤
//!  calls     a     b   c  d      └ for b, c and d
//! ```
//!
//! * A *round* is an `fsync` and the calls that it is for. The first of them to be polled when no other is running *leads*:
//!   it starts the operation. Leading is given up when the call is dropped; the others then form a new round, for a cancelled operation has
//!   done nothing that can be relied on.
//! * A round is as strong as the strongest of its calls: `fsync` if one of them wants the attributes, else `fdatasync`.
//! * An error is told to every call of the round: the kernel tells it once for each open file.
//! * Two opened files are two groups, even of one inode: each has errors of its own to be told.
//!
//! A table of the process has the groups, for as long as a call waits; a call costs two looks at it, some 100 ns.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use upshift_ring::{Fd, op};

use crate::net::{is_cancelled, start};
use crate::sync::{Lock, SetOnce};

/// The files that are waited for, by descriptor: each has a call that keeps it open.
static GROUPS: Lock<BTreeMap<RawFd, Arc<Group>>> = Lock::new(BTreeMap::new());

/// One file's calls.
struct Group(Lock<Rounds>);

#[derive(Default)]
struct Rounds {
    /// Calls that have not ended.
    calls: usize,
    /// Its operation has been started.
    running: Option<Arc<Round>>,
    /// It has not. There while there are calls for it.
    next: Option<Arc<Round>>,
    /// Does one of `next` want the attributes, too?
    all: bool,
    /// How many operations have been started.
    #[cfg(test)]
    started: usize,
}

/// `None`: its leader gave up. Otherwise an errno, or 0.
type Round = SetOnce<Option<i32>>;

/// A call, counted as long as it lasts.
struct Call {
    number: RawFd,
    group: Arc<Group>,
}

impl Call {
    fn begin(fd: &Fd) -> Call {
        let number = fd.as_raw_fd();
        let fresh = Arc::new(Group(Lock::new(Rounds::default())));
        let mut groups = GROUPS.lock();
        let group = groups.entry(number).or_insert(fresh).clone();
        group.0.lock().calls += 1;
        Call { number, group }
    }

    /// The round to come.
    fn join(&self, all: bool) -> Arc<Round> {
        let fresh = Arc::new(Round::new());
        let mut rounds = self.group.0.lock();
        rounds.all |= all;
        rounds.next.get_or_insert(fresh).clone()
    }

    /// What to do for a round that has not ended.
    fn turn(&self, mine: &Arc<Round>) -> Turn {
        let mut rounds = self.group.0.lock();
        if let Some(running) = &rounds.running {
            return Turn::Wait(running.clone());
        }
        match rounds.next.take_if(|next| Arc::ptr_eq(next, mine)) {
            Some(next) => {
                rounds.running = Some(next);
                #[cfg(test)]
                {
                    rounds.started += 1;
                }
                Turn::Lead {
                    all: std::mem::take(&mut rounds.all),
                }
            }
            // It has run, and its end is about to be told.
            None => Turn::Wait(mine.clone()),
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

enum Turn {
    /// Start the operation.
    Lead { all: bool },
    /// Wait for the end of this round.
    Wait(Arc<Round>),
}

/// Has started a round, and ends it.
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

/// Waits until what has been written to the file is on the device; its attributes, too, with `all`.
pub(super) async fn sync(fd: &Fd, all: bool) -> io::Result<()> {
    let call = Call::begin(fd);
    let mut mine = call.join(all);
    loop {
        match call.turn(&mine) {
            Turn::Lead { all } => {
                let mut leader = Leader {
                    call: &call,
                    round: &mine,
                    outcome: None,
                };
                let operation = if all {
                    op::Fsync::new(fd.clone())
                } else {
                    op::Fsync::data(fd.clone())
                };
                let result = start(operation)?.await;
                leader.outcome = match &result {
                    Ok(()) => Some(0),
                    // The ring has gone, and the operation with it.
                    Err(error) if is_cancelled(error) => None,
                    Err(error) => Some(error.raw_os_error().unwrap_or(libc::EIO)),
                };
                return result;
            }
            Turn::Wait(round) => {
                round.wait().await;
            }
        }
        match mine.get() {
            Some(Some(0)) => return Ok(()),
            Some(Some(errno)) => return Err(io::Error::from_raw_os_error(*errno)),
            Some(None) => mine = call.join(all),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests;
