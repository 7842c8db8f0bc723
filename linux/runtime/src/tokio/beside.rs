//! A runtime of tokio beside this one (feature `tokio-rt`), for code that asks for it.
//!
//! Threads that run code of users (of vCPUs, of blocking functions, the watchdog) are *within*
//! tokio's runtime (its `Handle::enter`): so what code in a coroutine makes of `tokio::{time, net,
//! fs, signal, process}` and `spawn_blocking` finds a driver. A thread of tokio's turns that
//! driver; when something is ready there it wakes the coroutine, which is polled here, at its
//! level. A task of `tokio::spawn` is polled by tokio's thread and has no level. That thread has
//! the shortest slices that the kernel takes: urgent coroutines may wait for it while the vCPUs
//! compute.
//!
//! A wake costs a switch from tokio's thread to the vCPU's; entering a context happens once per
//! thread, not per poll. Nothing of tokio's insides is used.
//!
//! At the end of the runtime the vCPUs leave first, and cancel what is left within tokio's
//! runtime; then that is shut down: for [`GRACE`] it is waited for, so that its tasks have been dropped; for blocking calls no longer.

use std::cell::RefCell;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::runtime::{self, EnterGuard, Handle};

use crate::context::{self, Belonging};
use crate::preempt;
use crate::tokio::around::Around;
use crate::tokio::servers;
use crate::user_code::catch_panic::catch_panic;

/// How long tasks that are dropped, and blocking calls, are waited for.
const GRACE: Duration = Duration::from_secs(1);

/// Why a call that needs a vCPU fails on a thread of tokio's.
const OUTSIDE: &str = "this is a task of tokio's (`tokio::spawn`, axum's `on_upgrade`), not a coroutine of upshift: do this in \
                       `upshift::spawn(…).await`, or spawn through `upshift::Handle::current()`";

/// tokio's runtime, for as long as ours lives.
pub(crate) struct Beside {
    runtime: Option<runtime::Runtime>,
}

impl Beside {
    /// Starts one thread, which drives it and runs its tasks: they are a part of `ours`.
    pub(crate) fn start(
        name: &str,
        blocking_threads: usize,
        ours: &Belonging,
    ) -> io::Result<Beside> {
        let belongs = ours.clone();
        let runtime = runtime::Builder::new_multi_thread()
            .worker_threads(1)
            // To which tokio adds its own.
            .max_blocking_threads(blocking_threads.min(usize::MAX / 2))
            .thread_name(format!("{name}-tokio"))
            .on_thread_start(move || context::belong(&belongs, OUTSIDE))
            .enable_all()
            .build()?;
        // On that one thread; those that block keep ordinary slices.
        drop(runtime.spawn(async { preempt::serve_shortly() }));
        drop(runtime.spawn(servers::watch()));
        Ok(Beside {
            runtime: Some(runtime),
        })
    }

    pub(crate) fn around(&self) -> Option<Arc<dyn Around>> {
        let runtime = self.runtime.as_ref()?;
        Some(Arc::new(Within(runtime.handle().clone())))
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        let Some(runtime) = self.runtime.take() else {
            return;
        };
        // To wait is not allowed where this thread is within a runtime of tokio's.
        let runtime = Arc::new(Mutex::new(Some(runtime)));
        let take = |from: &Mutex<Option<runtime::Runtime>>| {
            from.lock().unwrap_or_else(PoisonError::into_inner).take()
        };
        let theirs = runtime.clone();
        let waits = thread::Builder::new().spawn(move || {
            if let Some(runtime) = take(&theirs) {
                runtime.shutdown_timeout(GRACE);
            }
        });
        match waits {
            Ok(thread) => {
                // A panic of a task's destructor is tokio's to report; its payload may panic, too.
                catch_panic(|| drop(thread.join()));
            }
            Err(_) => {
                if let Some(runtime) = take(&runtime) {
                    runtime.shutdown_background();
                }
            }
        }
    }
}

/// Threads that poll are within it.
struct Within(Handle);

/// In this order: the guard goes first.
struct Entered {
    #[expect(dead_code, reason = "held for its drop")]
    guard: EnterGuard<'static>,
    #[expect(dead_code, reason = "what the guard borrows")]
    handle: Box<Handle>,
}

thread_local! {
    /// What this thread is within, the innermost last.
    static ENTERED: RefCell<Vec<Entered>> = const { RefCell::new(Vec::new()) };
}

impl Around for Within {
    fn begin(&self) {
        let handle = Box::new(self.0.clone());
        // SAFETY: what it borrows is on the heap and is dropped after it.
        let guard =
            unsafe { std::mem::transmute::<EnterGuard<'_>, EnterGuard<'static>>(handle.enter()) };
        ENTERED.with_borrow_mut(|entered| entered.push(Entered { guard, handle }));
    }

    fn end(&self) {
        let last = ENTERED.with_borrow_mut(Vec::pop);
        drop(last);
    }
}
