//! Blocks a thread on a future, for the `blocking_` calls of the synchronization primitives.

use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use crate::host;

struct ThreadWaker {
    thread: Thread,
    woken: AtomicBool,
}

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Only the first wake needs the system call.
        if !self.woken.swap(true, Ordering::Release) {
            self.thread.unpark();
        }
    }
}

thread_local! {
    /// Cache of the thread's waker, so that a loop of calls does not allocate.
    static WAKER_CACHE: Cell<Option<Arc<ThreadWaker>>> = const { Cell::new(None) };
}

/// Polls the future on the calling thread, which sleeps between the polls.
///
/// # Panics
/// When called in a coroutine, whose vCPU would wait for itself.
#[track_caller]
pub(super) fn block_on<F: Future>(future: F) -> F::Output {
    assert!(
        host::current_id().is_none(),
        "Cannot block the current thread from within a runtime. It would stop the vCPU: \
         use the async call, or `spawn_blocking`"
    );
    let mut future = pin!(future);
    let handle = WAKER_CACHE
        .try_with(Cell::take)
        .ok()
        .flatten()
        .unwrap_or_else(|| {
            Arc::new(ThreadWaker {
                thread: thread::current(),
                woken: AtomicBool::new(false),
            })
        });
    let waker = Waker::from(handle.clone());
    let mut cx = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            let _ = WAKER_CACHE.try_with(|cache| cache.set(Some(handle)));
            return output;
        }
        while !handle.woken.swap(false, Ordering::Acquire) {
            thread::park();
        }
    }
}
