//! Lets kernel coroutines sleep until a deadline.

use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};

use crate::arch::{csr, hart_index};
use crate::timers::Key;
use crate::{clock, hart};

/// Returns a future that waits until `deadline`, in ticks of the clock. Dropping it removes the
/// timer.
pub(crate) fn sleep_until(deadline: u64) -> Sleep {
    Sleep {
        deadline,
        armed: None,
    }
}

pub(crate) struct Sleep {
    deadline: u64,
    /// Hart that has the timer, and the timer's key there.
    armed: Option<(usize, Key)>,
}

impl Sleep {
    /// Returns whether a timer has been added. It is false before the first poll, and while there
    /// is no memory for the timer.
    pub(crate) fn is_armed(&self) -> bool {
        self.armed.is_some()
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if clock::now() >= self.deadline {
            return Poll::Ready(());
        }
        if let Some((index, key)) = self.armed {
            hart::at(index).timers.lock().set_waker(key, cx.waker());
        } else {
            // `rearm` programs only the timer of the hart that runs it, so interrupts stay off, and
            // this code stays on one hart.
            let interrupts = csr::interrupts_off();
            let hart = hart::this();
            let added = hart.timers.lock().add(self.deadline, cx.waker().clone());
            if let Ok(key) = added {
                self.armed = Some((hart_index(), key));
                clock::rearm(hart);
            }
            csr::interrupts_restore(interrupts);
            if added.is_err() {
                // There is no memory for a timer, so the coroutine wakes itself, and the next poll
                // checks the clock again.
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
        // The timer may have fired before the new waker was registered.
        if clock::now() >= self.deadline {
            return Poll::Ready(());
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some((index, key)) = self.armed {
            let waker = hart::at(index).timers.lock().cancel(key);
            // Drop the waker after the lock is released, because dropping it may free memory.
            drop(waker);
        }
    }
}
