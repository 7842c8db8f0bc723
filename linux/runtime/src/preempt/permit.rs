//! The permit of the calling thread to use the state that its vCPU shares with other threads.
//!
//! All code in this crate, in `upshift_ring` and in `upshift_core` that touches a vCPU runs between
//! [`enter`] and [`leave`]. Such a section is a *use* of the permit. Another thread revokes the
//! permit in the middle of a poll, either to suspend that poll (`preempt`), or to serve the vCPU's
//! ring during a long poll (`stand_in`). If the polling thread then begins a use, it waits in
//! `enter` until its permit is granted again.
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

/// Waits until the permit is granted.
pub(crate) fn wait_for_grant(permit: &Permit) {
    permit.wait_until(|| false);
}

/// The permit and the hooks that [`hold`] has replaced.
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

/// Restores the permit that [`hold`] has replaced.
///
/// # Safety
/// The former permit still meets the contract of [`hold`].
pub(crate) unsafe fn restore(saved: Saved) {
    PERMIT.set(saved.0);
    HOOKS.set(saved.1);
}

/// Begins a use. Waits first while the permit is revoked.
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

/// Ends a use that [`enter`] has begun.
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

/// Begins a use that may hold a lock of the runtime. Debug builds check that no user code runs
/// within it.
#[inline]
pub(crate) fn begin_use() {
    enter();
    #[cfg(debug_assertions)]
    USES.set(USES.get() + 1);
}

/// Ends a use that [`begin_use`] has begun.
#[inline]
pub(crate) fn end_use() {
    #[cfg(debug_assertions)]
    USES.set(USES.get() - 1);
    leave();
}

#[cfg(debug_assertions)]
pub(crate) fn is_used() -> bool {
    USES.get() != 0
}

/// Checks that user code may run now. It must not run within a use, because it may take long, or
/// take a lock that the use holds.
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

/// Guard of a critical section, that is, of a use that may hold a lock of the runtime.
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
