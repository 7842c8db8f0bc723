//! The reaper: a kernel coroutine that ends the remaining processes of an ended share. A share has
//! *ended* when the process that was created with it has ended (`share.rs`). The reaper ends one
//! process per poll, so that the end of many processes delays threads no longer than the end of
//! one.
//!
//! The reaper is as urgent as the most urgent caller that has ended a share, or waits for its end.
//! No process is missed, because a share is marked as ended before its members are searched, and a
//! process enters the table before it is checked whether its share has ended.

use core::future::poll_fn;
use core::task::Poll;

use os_abi::number::KILLED;
use upshift_core::{CoroutineId, Level, Priority, SpawnError};

use super::table;
use crate::arch::lock::IrqLock;
use crate::executor;
use crate::trace::{self, Purpose};

struct Reaper {
    coroutine: Option<CoroutineId>,
    level: Level,
    has_work: bool,
}

static REAPER: IrqLock<Reaper> = IrqLock::new(Reaper {
    coroutine: None,
    level: executor::LEAST_URGENT_WORK,
    has_work: false,
});

pub(super) fn init() -> Result<(), SpawnError> {
    let reaper = executor::spawn(reap(), Priority::At(executor::LEAST_URGENT_WORK))?;
    trace::name(reaper.id(), Purpose::Reaper);
    REAPER.lock().coroutine = Some(reaper.id());
    reaper.detach();
    Ok(())
}

/// Makes the reaper at least as urgent as `level`, because a share has ended, or a caller of this
/// level waits until a share is empty.
pub(super) fn request(level: Level) {
    let mut reaper = REAPER.lock();
    reaper.has_work = true;
    if let Some(coroutine) = reaper.coroutine {
        if level < reaper.level {
            reaper.level = level;
            // The coroutine never ends.
            let _ = executor::domain().reprio(coroutine, level);
        }
        let _ = executor::domain().wake(coroutine);
    }
}

/// Takes the work, if any; otherwise makes the reaper the least urgent.
fn take_work() -> Poll<()> {
    let mut reaper = REAPER.lock();
    if core::mem::take(&mut reaper.has_work) {
        return Poll::Ready(());
    }
    reaper.level = executor::LEAST_URGENT_WORK;
    if let Some(coroutine) = reaper.coroutine {
        let _ = executor::domain().reprio(coroutine, reaper.level);
    }
    Poll::Pending
}

async fn reap() {
    loop {
        poll_fn(|_| take_work()).await;
        while let Some(process) = table::find_unreaped() {
            process.end(KILLED, executor::level());
            drop(process);
            executor::yield_now().await;
        }
    }
}
