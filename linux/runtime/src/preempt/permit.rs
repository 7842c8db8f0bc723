//! The permit of the calling thread for the state that its vCPU shares with other threads.
//!
//! All code in this crate, in the ring and in the core that touches a vCPU runs between [`enter`]
//! and [`leave`]. Such a section is a *use* of the permit. Another thread revokes the permit in the
//! middle of a poll to suspend that poll (`preempt`), or to take care of the vCPU's ring
//! (`stand_in`). The polling thread then waits in `enter` until its permit is granted again.
//!
//! A use costs about a nanosecond, and on threads without a permit one load of a thread-local.

use std::cell::Cell;
use std::ptr::null;

use upshift_elevate::dispatch::Permit;

thread_local! {
    static PERMIT: Cell<*const Permit> = const { Cell::new(null()) };
    static HOOKS: Cell<Hooks> = const { Cell::new(Hooks { notify: || (), wait: wait_for_grant }) };
}

/// Hooks of the holder of a permit, called on its thread when another thread revokes the permit.
#[derive(Clone, Copy)]
pub(crate) struct Hooks {
    /// Called at the end of a use of the permit if another thread waits for that.
    pub(crate) notify: fn(),
    /// Called when a use would begin while the permit is revoked. Returns once it is granted again.
    pub(crate) wait: fn(&Permit),
}

/// Sleeps until the permit is granted.
pub(crate) fn wait_for_grant(permit: &Permit) {
    permit.wait_until(|| false);
}

/// The former permit of a thread that holds another one.
#[derive(Clone, Copy)]
pub(crate) struct Saved(*const Permit, Hooks);

/// Gives the calling thread this permit. Returns its former one.
///
/// # Safety
/// The permit lives until the thread ends or calls [`restore`]. If a use of the former permit is
/// under way, it ends only after [`restore`].
pub(crate) unsafe fn hold(permit: &Permit, hooks: Hooks) -> Saved {
    Saved(PERMIT.replace(permit), HOOKS.replace(hooks))
}

/// Restores the permit that [`hold`] has returned.
///
/// # Safety
/// The former permit still meets the contract of [`hold`].
pub(crate) unsafe fn restore(saved: Saved) {
    PERMIT.set(saved.0);
    HOOKS.set(saved.1);
}

/// Begins a use of the state that the threads of a vCPU share.
#[inline]
pub(crate) fn enter() {
    let permit = PERMIT.get();
    if !permit.is_null() {
        // SAFETY: by the contract of `hold`, a permit lives while a thread holds it.
        let permit = unsafe { &*permit };
        if !permit.begin() {
            wait(permit);
        }
    }
}

#[cold]
fn wait(permit: &Permit) {
    (HOOKS.get().wait)(permit);
}

/// Ends the use that [`enter`] began.
#[inline]
pub(crate) fn leave() {
    let permit = PERMIT.get();
    // SAFETY: by the contract of `hold`, a permit lives while a thread holds it.
    if !permit.is_null() && unsafe { &*permit }.leave() {
        notify();
    }
}

#[cold]
fn notify() {
    (HOOKS.get().notify)();
}

#[cfg(debug_assertions)]
thread_local! {
    /// Number of uses under way on the calling thread, whether it has a permit or not. A use by the
    /// loop of a vCPU is not counted, because the loop may run within a poll.
    static USES: Cell<u32> = const { Cell::new(0) };
}

/// Begins a use of memory that the threads of a vCPU share, or of a lock of the runtime.
#[inline]
pub(crate) fn begin_use() {
    enter();
    #[cfg(debug_assertions)]
    USES.set(USES.get() + 1);
}

/// Ends the use that [`begin_use`] began.
#[inline]
pub(crate) fn end_use() {
    #[cfg(debug_assertions)]
    USES.set(USES.get() - 1);
    leave();
}

/// Returns whether a use is under way, or a lock held, on the calling thread.
#[cfg(debug_assertions)]
pub(crate) fn is_used() -> bool {
    USES.get() != 0
}

/// Checks that user code may run now. User code must not run within a use, because it may take
/// long, and may take the same lock again.
///
/// # Panics
/// In debug builds, if a use is under way or the calling thread holds a lock of the runtime.
#[inline]
pub(crate) fn debug_assert_unused() {
    #[cfg(debug_assertions)]
    assert!(
        !is_used(),
        "user code is called while a lock of the runtime is held"
    );
}

/// Guard of a use, from [`begin_use`] to [`end_use`].
pub(crate) struct Critical(());

impl Critical {
    #[inline]
    pub(crate) fn enter() -> Critical {
        begin_use();
        Critical(())
    }
}

impl Drop for Critical {
    #[inline]
    fn drop(&mut self) {
        end_use();
    }
}
