//! The timers of one vCPU (worker): a timer wheel of wakers behind a lock.
//!
//! The thread that serves the vCPU arms and resets the timers. That thread, or another vCPU that
//! stands in for the timers' vCPU, expires them. Any thread to which a `Sleep` has been moved may
//! cancel its timer. The lock is hardly ever contended, so it costs one atomic exchange; wakers
//! run, and are dropped, while it is not held. The loop of the vCPU reads [`Timers::next_deadline`]
//! without the lock.
//!
//! A timer is armed only on the thread that serves the vCPU, so that this thread sees the new
//! deadline before it waits. Other threads only remove deadlines. At worst, the vCPU's loop then
//! looks for due timers once in vain.

use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;

use upshift_core::Level;
use upshift_ring::DeferredCall;

pub(super) use super::wheel::Key;
use super::wheel::Wheel;
use crate::host::{self, Linux};
use crate::sync::lock::Lock;
use crate::sync::waker::LockSafeWaker;

/// Value of [`Timers::next`] while no timer is armed.
const NEVER: u64 = u64::MAX;

/// The waker of a timer. The waker is *foreign* if it is not that of a coroutine of upshift.
struct Alarm {
    waker: Waker,
    /// Level of the arming coroutine if the waker is foreign, else 0.
    level: u8,
}

impl Alarm {
    /// Creates an alarm. `level` returns the level of the arming coroutine.
    #[inline]
    fn of(waker: &mut LockSafeWaker<'_>, level: impl FnOnce() -> Option<Level>) -> Alarm {
        let level = if waker.is_foreign() {
            level().unwrap_or_default().get()
        } else {
            0
        };
        let waker = waker.take();
        Alarm { waker, level }
    }

    fn into_deferred_call(self) -> DeferredCall {
        DeferredCall::waker(self.level, self.waker)
    }
}

/// The timers of one vCPU.
pub(crate) struct Timers {
    /// Address of the [`Linux`] of the vCPU's runtime, which identifies the runtime. The runtime
    /// either outlives these timers or has closed them.
    host: usize,
    /// Lower bound of all deadlines (ns); changes under the lock.
    next: AtomicU64,
    state: Lock<State>,
}

struct State {
    wheel: Wheel<Alarm>,
    /// Number of [`TimersRef`]s.
    num_refs: usize,
    /// True while the [`TimersRef`]s own one count of the `Arc`: from the first timer on, until the
    /// timers are closed and the last `TimersRef` is gone.
    owns_count: bool,
    /// Set when the vCPU leaves the runtime, after which these timers are not expired any more.
    closed: bool,
    /// Cache of `expire`, so that it does not allocate.
    due: Vec<(u64, Alarm)>,
}

impl State {
    /// Returns true, once, when the caller must release the count of the [`TimersRef`]s.
    fn take_count(&mut self) -> bool {
        self.closed && self.num_refs == 0 && std::mem::take(&mut self.owns_count)
    }
}

/// The reference of an armed timer to the timers of its vCPU; cancelling the timer consumes the
/// reference. These references are counted under the lock, which arming and cancelling take anyway,
/// and not in the `Arc`.
pub(super) struct TimersRef(NonNull<Timers>);

// SAFETY: `TimersRef` is a shared reference to `Timers`, which may go to any thread because
// `Timers` is `Sync`.
unsafe impl Send for TimersRef {}
// SAFETY: as above.
unsafe impl Sync for TimersRef {}

impl Deref for TimersRef {
    type Target = Timers;
    #[inline]
    fn deref(&self) -> &Timers {
        // SAFETY: the pointer is valid, because the `TimersRef`s own a count of the `Arc` as long
        // as any of them exists.
        unsafe { self.0.as_ref() }
    }
}

impl TimersRef {
    /// Cancels the timer. Returns its waker if it has not fired.
    #[inline]
    pub(super) fn cancel(self, key: Key) -> Option<Waker> {
        let mut state = self.state.lock();
        let alarm = state.wheel.remove(key);
        if state.wheel.is_empty() {
            self.next.store(NEVER, Ordering::Relaxed);
        }
        state.num_refs -= 1;
        let releases_count = state.take_count();
        drop(state);
        if releases_count {
            self.release_count();
        }
        alarm.map(|alarm| alarm.waker)
    }

    #[cold]
    fn release_count(self) {
        // SAFETY: the pointer comes from the `Arc`, and the count that is released belongs to all
        // `TimersRef`s, of which this was the last.
        unsafe { Arc::decrement_strong_count(self.0.as_ptr()) };
    }
}

/// The outcome of arming a timer.
pub(super) enum Armed {
    At(TimersRef, Key),
    /// The deadline has passed; nothing is armed.
    Past,
    /// The vCPU has left the runtime; nothing is armed.
    Closed,
}

pub(super) enum TimerState {
    Pending,
    /// The timer is gone because it has fired.
    Fired,
    /// The timer is gone: its waker was woken because its vCPU left the runtime.
    Evicted,
}

impl Timers {
    pub(crate) fn new(now: u64, host: &Linux) -> Timers {
        Timers {
            host: ptr::from_ref(host).addr(),
            next: AtomicU64::new(NEVER),
            state: Lock::new(State {
                wheel: Wheel::new(now),
                num_refs: 0,
                owns_count: false,
                closed: false,
                due: Vec::new(),
            }),
        }
    }

    #[inline]
    pub(super) fn belong_to(&self, host: &Linux) -> bool {
        ptr::from_ref(host).addr() == self.host
    }

    /// Returns when to call [`expire`](Timers::expire) next, in ns; at worst too early. Costs one
    /// load.
    #[inline]
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        match self.next.load(Ordering::Relaxed) {
            NEVER => None,
            next => Some(next),
        }
    }

    /// Wakes all coroutines whose deadline is at or before `now` (ns), in the order of their
    /// deadlines, and passes foreign wakers to `defer`. Returns the number of timers that fired.
    pub(crate) fn expire(&self, now: u64, mut defer: impl FnMut(DeferredCall)) -> usize {
        if self.next.load(Ordering::Relaxed) > now {
            return 0;
        }
        let mut state = self.state.lock();
        let mut due = std::mem::take(&mut state.due);
        state
            .wheel
            .expire(now, |deadline, alarm| due.push((deadline, alarm)));
        self.refresh(&state);
        drop(state);
        let count = due.len();
        if count > 1 {
            due.sort_unstable_by_key(|timer| timer.0);
        }
        for (_, alarm) in due.drain(..) {
            if host::is_own_waker(&alarm.waker) {
                alarm.waker.wake();
            } else {
                defer(alarm.into_deferred_call());
            }
        }
        let mut state = self.state.lock();
        // The memory of a burst is not kept.
        if due.capacity() <= 1024 {
            std::mem::swap(&mut state.due, &mut due);
        }
        drop(state);
        count
    }

    /// Wakes all sleepers, which then arm on another vCPU. Called when the vCPU leaves the runtime.
    pub(crate) fn close(self: &Arc<Self>) {
        let mut alarms = Vec::new();
        let mut state = self.state.lock();
        state.closed = true;
        state.wheel.drain(|alarm| alarms.push(alarm));
        self.next.store(NEVER, Ordering::Relaxed);
        let releases_count = state.take_count();
        drop(state);
        if releases_count {
            // SAFETY: the pointer comes from the `Arc`, and the count that is released belongs to
            // the `TimersRef`s. It is not the last count, because the caller has another.
            unsafe { Arc::decrement_strong_count(Arc::as_ptr(self)) };
        }
        for alarm in alarms {
            alarm.into_deferred_call().run();
        }
    }

    /// Arms a timer. Called on the thread that serves the vCPU, in a poll at `level`. Runs no user
    /// code.
    #[inline]
    pub(super) fn arm(
        self: &Arc<Self>,
        deadline: u64,
        waker: &mut LockSafeWaker<'_>,
        level: Option<Level>,
    ) -> Armed {
        let mut state = self.state.lock();
        if state.wheel.is_past(deadline) {
            return Armed::Past;
        }
        if state.closed {
            return Armed::Closed;
        }
        let alarm = Alarm::of(waker, || level);
        let (key, fire_time) = state.wheel.insert(deadline, alarm);
        if fire_time < self.next.load(Ordering::Relaxed) {
            self.next.store(fire_time, Ordering::Relaxed);
        }
        state.num_refs += 1;
        if !state.owns_count {
            state.owns_count = true;
            std::mem::forget(self.clone());
        }
        // The pointer comes from the `Arc`, not from a reference, so that the counts can be
        // reached. SAFETY: the pointer of an `Arc` is not null.
        let timers_ref = TimersRef(unsafe { NonNull::new_unchecked(Arc::as_ptr(self).cast_mut()) });
        Armed::At(timers_ref, key)
    }

    /// Checks whether a timer has fired. If not, it will wake `waker`.
    pub(super) fn poll(&self, key: Key, waker: &Waker) -> TimerState {
        let mut waker = LockSafeWaker::new(waker);
        let mut state = self.state.lock();
        let Some(alarm_slot) = state.wheel.get_mut(key) else {
            return if state.closed {
                TimerState::Evicted
            } else {
                TimerState::Fired
            };
        };
        if !alarm_slot.waker.will_wake(&waker) {
            let alarm = Alarm::of(&mut waker, host::current_level);
            let old_alarm = std::mem::replace(alarm_slot, alarm);
            drop(state);
            drop(old_alarm);
        }
        TimerState::Pending
    }

    /// Changes the deadline of a timer that has not fired, on the thread that serves the vCPU.
    /// Returns false if it has fired.
    pub(super) fn reset(&self, key: Key, deadline: u64) -> bool {
        let mut state = self.state.lock();
        let armed = state.wheel.reset(key, deadline);
        let fire_time = state.wheel.rounded(deadline);
        if fire_time < self.next.load(Ordering::Relaxed) {
            self.next.store(fire_time, Ordering::Relaxed);
        }
        armed
    }

    /// Stores the lower bound of the deadlines anew. The caller holds the lock.
    fn refresh(&self, state: &State) {
        let next = state.wheel.next_deadline().unwrap_or(NEVER);
        self.next.store(next, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arm(timers: &Arc<Timers>, deadline: u64) -> (TimersRef, Key) {
        let waker = Waker::noop();
        match timers.arm(deadline, &mut LockSafeWaker::new(waker), None) {
            Armed::At(timers_ref, key) => (timers_ref, key),
            Armed::Past | Armed::Closed => panic!("not armed"),
        }
    }

    #[test]
    fn timers_live_until_the_last_armed_timer_is_cancelled() {
        let host = Linux::new();
        for closes_first in [true, false] {
            let timers = Arc::new(Timers::new(0, &host));
            let alive = Arc::downgrade(&timers);
            let (first_ref, first_key) = arm(&timers, 10_000);
            let (second_ref, second_key) = arm(&timers, 20_000);
            assert_eq!(timers.expire(15_000, DeferredCall::run), 1);
            assert!(
                first_ref.cancel(first_key).is_none(),
                "the timer has not fired"
            );
            if closes_first {
                timers.close();
                drop(timers);
                assert!(alive.upgrade().is_some());
                let waker = second_ref.cancel(second_key);
                assert!(waker.is_none(), "`close` did not wake the sleeper");
            } else {
                assert!(second_ref.cancel(second_key).is_some());
                timers.close();
                drop(timers);
            }
            assert!(alive.upgrade().is_none());
        }
    }
}
