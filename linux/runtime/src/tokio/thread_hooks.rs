//! Hooks that run when a thread begins to serve a vCPU, and when it stops.
//!
//! A [`ThreadHook`] begins when a thread enters the loop of a vCPU, and ends when the thread leaves
//! the loop. This happens once on the thread of a vCPU, with each call of `block_on` on the calling
//! thread, and on spare threads each time that they serve. When a hook begins, the thread already
//! serves the vCPU; when the hook ends, it no longer does. Coroutines move between threads, so each
//! thread has the same hooks. Hooks cost nothing per poll.

use std::fmt;
use std::sync::Arc;

use crate::notice::notice;
use crate::user_code::catch_panic::catch_panic;

/// Code that runs at both ends of a thread's service of a vCPU.
pub(crate) trait ThreadHook: Send + Sync {
    /// Called when the thread begins to serve the vCPU.
    fn begin(&self);
    /// Called when the thread has stopped to serve the vCPU.
    fn end(&self);
}

/// The hooks of a runtime, the outermost first.
#[derive(Clone, Default)]
pub(crate) struct ThreadHooks(Vec<Arc<dyn ThreadHook>>);

impl ThreadHooks {
    pub(crate) fn add(&mut self, hook: Arc<dyn ThreadHook>) {
        self.0.push(hook);
    }

    /// Returns these hooks, followed by `inner`.
    pub(crate) fn with(&self, inner: ThreadHooks) -> ThreadHooks {
        ThreadHooks([self.0.clone(), inner.0].concat())
    }

    /// Begins all hooks; they end when the result is dropped, on the same thread.
    #[inline]
    pub(crate) fn begin(&self) -> HooksGuard<'_> {
        self.0.iter().for_each(|hook| run_hook(|| hook.begin()));
        HooksGuard(self)
    }
}

/// Guard that ends all hooks of a thread, the innermost first.
pub(crate) struct HooksGuard<'a>(&'a ThreadHooks);

impl Drop for HooksGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        let all = self.0.0.iter();
        all.rev().for_each(|hook| run_hook(|| hook.end()));
    }
}

/// Calls a hook and reports its panic, so that the loop of a vCPU does not unwind.
fn run_hook(call: impl FnOnce()) {
    if catch_panic(call).is_none() {
        notice(format_args!(
            "a start or stop hook of a vCPU's thread panicked; the thread continues"
        ));
    }
}

impl fmt::Debug for ThreadHooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} hooks", self.0.len())
    }
}

/// The hook of `Builder::on_vcpu_start`.
pub(crate) struct OnStart<F>(pub(crate) F);

impl<F: Fn() + Send + Sync> ThreadHook for OnStart<F> {
    fn begin(&self) {
        (self.0)();
    }
    fn end(&self) {}
}

/// The hook of `Builder::on_vcpu_stop`.
pub(crate) struct OnStop<F>(pub(crate) F);

impl<F: Fn() + Send + Sync> ThreadHook for OnStop<F> {
    fn begin(&self) {}
    fn end(&self) {
        (self.0)();
    }
}
