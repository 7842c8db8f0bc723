//! Hooks around a thread's polls for a vCPU.
//!
//! An [`Around`] is begun when a thread takes the loop of a vCPU up, and ended when it leaves
//! it: the thread of a vCPU once, that of `block_on` with each call, spare threads each time that
//! they go on. A thread has the vCPU when an [`Around`] is begun there, and no longer when it is
//! ended. Coroutines move between threads, so each thread has to be within the same.
//! Nothing of it is on the way of a poll.

use std::fmt;
use std::sync::Arc;

use crate::notice::notice;
use crate::user_code::catch_panic::catch_panic;

/// User code around the polls of a thread.
pub(crate) trait Around: Send + Sync {
    /// Called when the calling thread begins to poll.
    fn begin(&self);
    /// Called on the same thread when it ends to poll.
    fn end(&self);
}

/// All of a runtime, the outermost first.
#[derive(Clone, Default)]
pub(crate) struct Surroundings(Vec<Arc<dyn Around>>);

impl Surroundings {
    pub(crate) fn add(&mut self, around: Arc<dyn Around>) {
        self.0.push(around);
    }

    /// Puts `inner` within these.
    pub(crate) fn with(&self, inner: Surroundings) -> Surroundings {
        Surroundings([self.0.clone(), inner.0].concat())
    }

    /// Begins all; they end when the result is dropped, on the same thread.
    #[inline]
    pub(crate) fn begin(&self) -> Within<'_> {
        self.0.iter().for_each(|around| told(|| around.begin()));
        Within(self)
    }
}

/// Ends all [`Around`]s of a thread, the innermost first.
pub(crate) struct Within<'a>(&'a Surroundings);

impl Drop for Within<'_> {
    #[inline]
    fn drop(&mut self) {
        let all = self.0.0.iter();
        all.rev().for_each(|around| told(|| around.end()));
    }
}

/// The loop of a vCPU does not unwind.
fn told(call: impl FnOnce()) {
    if catch_panic(call).is_none() {
        notice(format_args!(
            "a start or stop hook of a vCPU's thread panicked; the thread continues"
        ));
    }
}

impl fmt::Debug for Surroundings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} around", self.0.len())
    }
}

/// The hook of `Builder::on_vcpu_start`.
pub(crate) struct OnStart<F>(pub(crate) F);

impl<F: Fn() + Send + Sync> Around for OnStart<F> {
    fn begin(&self) {
        (self.0)();
    }
    fn end(&self) {}
}

/// The hook of `Builder::on_vcpu_stop`.
pub(crate) struct OnStop<F>(pub(crate) F);

impl<F: Fn() + Send + Sync> Around for OnStop<F> {
    fn begin(&self) {}
    fn end(&self) {
        (self.0)();
    }
}
