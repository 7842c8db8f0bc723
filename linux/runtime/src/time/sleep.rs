//! A future that is ready at a deadline.
//!
//! A [`Sleep`] is armed at its first poll, in the timer wheel of the vCPU (worker) that polls it.
//! The timer stays there until it fires or the `Sleep` is dropped, reset, polled by another
//! runtime, or polled after that vCPU has left the runtime. When the `Sleep` is polled on a thread
//! of the tokio runtime that runs beside the vCPUs, a coroutine on a vCPU waits for the deadline.
//! Arming and cancelling cost two short locks, and updates of the counters of the waker and of the
//! vCPU.

use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

#[cfg(feature = "test-util")]
use super::pause;
use super::timers::{Armed, Key, TimerState, Timers, TimersRef};
use super::{Instant, nanos_of, now, now_or_later};
use crate::context;
use crate::sync::{LockSafeWaker, may_proceed, wake};
use crate::time::clock;
use crate::user_code::on_vcpu::OnVcpu;

/// Waits for a duration, which begins with this call. A duration of zero is ready at once; a
/// duration longer than the clock can count (584 years) never ends.
///
/// ```
/// use std::time::{Duration, Instant};
///
/// upshift::Runtime::new()?.block_on(async {
///     let began = Instant::now();
///     upshift::time::sleep(Duration::from_millis(1)).await;
///     assert!(began.elapsed() >= Duration::from_millis(1));
/// });
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Cancellation safety
/// The future may be dropped at any time; its timer is cancelled.
///
/// # Panics
/// When the future is polled on a thread that neither serves a vCPU of an upshift runtime nor
/// belongs to the tokio runtime beside it (`Builder::tokio`).
#[inline]
pub fn sleep(duration: Duration) -> Sleep {
    Sleep::at(if duration.is_zero() {
        0
    } else {
        now_or_later().saturating_add(clock::nanos(duration))
    })
}

/// Waits until an instant. For a past instant, the future is ready at once or as soon as the vCPU
/// next reads its clock.
///
/// ```
/// use std::time::{Duration, Instant};
///
/// upshift::Runtime::new()?.block_on(async {
///     let deadline = Instant::now() + Duration::from_millis(1);
///     upshift::time::sleep_until(deadline).await;
///     assert!(Instant::now() >= deadline);
/// });
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Cancellation safety
/// Like that of [`sleep`].
///
/// # Panics
/// Like [`sleep`].
pub fn sleep_until(deadline: impl Into<Instant>) -> Sleep {
    Sleep::at(nanos_of(deadline.into()))
}

/// The future of [`sleep`] and [`sleep_until`].
///
/// It is `Unpin` and may be awaited by `&mut`, reset, and awaited again.
///
/// ```
/// use std::time::Duration;
/// use upshift::time::{self, Instant};
///
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// let mut idle = time::sleep(Duration::from_millis(1));
/// (&mut idle).await;
/// assert!(idle.is_elapsed());
/// idle.reset(Instant::now() + Duration::from_millis(1));
/// idle.await;
/// # });
/// ```
#[must_use = "futures do nothing unless awaited"]
pub struct Sleep {
    /// Deadline in nanoseconds of the clock.
    deadline: u64,
    stage: Stage,
    /// Coroutine that waits for the deadline, in the stage `Delegated`.
    on_vcpu: Option<Box<OnVcpu<()>>>,
}

enum Stage {
    New,
    Armed(TimersRef, Key),
    /// Armed while the time is paused.
    #[cfg(feature = "test-util")]
    Paused(pause::Key),
    /// Polled on a thread of tokio, so the coroutine in [`Sleep::on_vcpu`] waits for the deadline.
    Delegated,
    Done,
}

impl Sleep {
    pub(super) fn at(deadline: u64) -> Sleep {
        Sleep {
            deadline,
            stage: Stage::New,
            on_vcpu: None,
        }
    }

    pub(super) fn nanos(&self) -> u64 {
        self.deadline
    }

    /// Returns true if the future has not been polled since it was created or reset.
    pub(super) fn is_new(&self) -> bool {
        matches!(self.stage, Stage::New)
    }

    /// Returns the instant at which the future becomes ready.
    ///
    /// ```
    /// use std::time::Duration;
    /// use upshift::time::{self, Instant};
    ///
    /// let deadline = Instant::now() + Duration::from_secs(1);
    /// assert_eq!(time::sleep_until(deadline).deadline(), deadline);
    /// ```
    #[must_use]
    pub fn deadline(&self) -> Instant {
        clock::to_instant(self.deadline).into()
    }

    /// Returns whether the deadline has passed; always false before the future is polled for the
    /// first time.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let mut sleep = upshift::time::sleep(Duration::from_millis(1));
    /// assert!(!sleep.is_elapsed());
    /// (&mut sleep).await;
    /// assert!(sleep.is_elapsed());
    /// # });
    /// ```
    #[must_use]
    pub fn is_elapsed(&self) -> bool {
        match self.stage {
            Stage::New => false,
            Stage::Done => true,
            _ => now() >= self.deadline,
        }
    }

    /// Changes the deadline, to an earlier or a later time, whether the future is ready or not.
    /// Await the future (again) afterwards.
    ///
    /// ```
    /// use std::time::{Duration, Instant};
    ///
    /// upshift::Runtime::new()?.block_on(async {
    ///     let mut sleep = upshift::time::sleep(Duration::from_secs(3600));
    ///     sleep.reset(Instant::now() + Duration::from_millis(1));
    ///     sleep.await;
    /// });
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn reset(&mut self, deadline: impl Into<Instant>) {
        self.reset_nanos(nanos_of(deadline.into()));
    }

    pub(super) fn reset_nanos(&mut self, deadline: u64) {
        self.deadline = deadline;
        if let Stage::Armed(timers, key) = &self.stage
            && context::has_timers(timers)
            && timers.reset(*key, to_unpaused(deadline))
        {
            return;
        }
        // If the timer is armed on another vCPU, that vCPU may sleep until the old deadline. So the
        // timer's waker is woken here; the coroutine is then polled, and arms a timer on the vCPU
        // where it runs. If the timer has fired, the coroutine has been woken already.
        if let Some(waker) = self.disarm() {
            wake(waker);
        }
        #[cfg(feature = "test-util")]
        if let Stage::Paused(key) = self.stage
            && let Some(waker) = pause::cancel(key)
        {
            match pause::arm(deadline, &waker) {
                Some(Ok(key)) => {
                    self.stage = Stage::Paused(key);
                    return;
                }
                _ => wake(waker),
            }
        }
        self.stage = Stage::New;
        self.on_vcpu = None;
    }

    /// Cancels the timer, if there is one. Returns its waker if it has not fired.
    #[inline]
    fn disarm(&mut self) -> Option<Waker> {
        if !matches!(self.stage, Stage::Armed(..)) {
            return None;
        }
        match mem::replace(&mut self.stage, Stage::New) {
            Stage::Armed(timers, key) => timers.cancel(key),
            _ => None,
        }
    }

    /// Polls the future. With `give_way`, returns `Pending` while the poll should give way to other
    /// coroutines.
    #[inline]
    pub(super) fn advance(&mut self, cx: &mut Context<'_>, give_way: bool) -> Poll<()> {
        let elapsed = match &self.stage {
            Stage::Done => true,
            Stage::New => false,
            Stage::Armed(timers, key) => {
                let fired = timers.poll(*key, cx.waker());
                if matches!(fired, TimerState::Pending) && !belongs_to_other_runtime(timers) {
                    return Poll::Pending;
                }
                drop(self.disarm());
                match fired {
                    TimerState::Fired => true,
                    // The clock decides, because the timer's vCPU may never serve its timers again.
                    TimerState::Pending | TimerState::Evicted => now() >= self.deadline,
                }
            }
            #[cfg(feature = "test-util")]
            Stage::Paused(key) => {
                if !pause::has_fired(*key, cx.waker()) {
                    return Poll::Pending;
                }
                // The clock decides, because `resume` may have woken the waker instead.
                pause::has_passed(self.deadline)
            }
            Stage::Delegated => {
                if self.poll_on_vcpu(cx).is_pending() {
                    return Poll::Pending;
                }
                now() >= self.deadline
            }
        };
        if elapsed {
            self.stage = Stage::Done;
        } else {
            self.stage = Stage::New;
            if self.arm(cx).is_pending() {
                return Poll::Pending;
            }
        }
        if give_way && !may_proceed() {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    }

    /// Arms the timer. Returns `Ready` if the deadline has passed.
    #[inline]
    fn arm(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        #[cfg(feature = "test-util")]
        match pause::arm(self.deadline, cx.waker()) {
            Some(Ok(key)) => {
                self.stage = Stage::Paused(key);
                return Poll::Pending;
            }
            Some(Err(())) => {
                self.stage = Stage::Done;
                return Poll::Ready(());
            }
            None => {}
        }
        let deadline = to_unpaused(self.deadline);
        let mut waker = LockSafeWaker::new(cx.waker());
        let armed = context::with(|worker| {
            let level = worker.executor().running_level();
            match worker.timers().arm(deadline, &mut waker, level) {
                Armed::At(timers, key) => Stage::Armed(timers, key),
                Armed::Past => Stage::Done,
                Armed::Closed => Stage::New,
            }
        });
        match armed {
            Some(armed) => self.stage = armed,
            None => return self.delegate(cx),
        }
        match self.stage {
            Stage::Done => return Poll::Ready(()),
            // The vCPU has left the runtime, so the next poll is on another vCPU.
            Stage::New => cx.waker().wake_by_ref(),
            _ => {}
        }
        Poll::Pending
    }

    /// Starts a coroutine that waits for the deadline, since the calling thread serves no vCPU.
    #[cold]
    fn delegate(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Ok(on_vcpu) = OnVcpu::run(Sleep::at(self.deadline)) else {
            panic!(
                "a timer was polled outside of an upshift runtime: \
                 await it in a coroutine (`Runtime::block_on`, `upshift::spawn`)"
            )
        };
        self.on_vcpu = Some(Box::new(on_vcpu));
        self.stage = Stage::Delegated;
        self.poll_on_vcpu(cx)
    }

    #[cold]
    fn poll_on_vcpu(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(on_vcpu) = &mut self.on_vcpu else {
            return Poll::Ready(());
        };
        let polled = Pin::new(&mut **on_vcpu).poll(cx).map(|_| ());
        if polled.is_ready() {
            self.on_vcpu = None;
        }
        polled
    }
}

impl Future for Sleep {
    type Output = ();
    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.advance(cx, true)
    }
}

impl Drop for Sleep {
    #[inline]
    fn drop(&mut self) {
        match &self.stage {
            Stage::Armed(..) => drop(self.disarm()),
            #[cfg(feature = "test-util")]
            Stage::Paused(key) => drop(pause::cancel(*key)),
            Stage::New | Stage::Done | Stage::Delegated => {}
        }
    }
}

/// Returns true if the calling thread belongs to another runtime than `timers`.
#[inline]
fn belongs_to_other_runtime(timers: &Timers) -> bool {
    context::with_open(|worker| timers.belong_to(worker.executor().domain().host()))
        .is_some_and(|is_here| !is_here)
}

/// Returns the deadline for the wheel. If the time has ever been paused, the deadline is converted
/// from the clock that can be paused to the real clock.
#[inline]
fn to_unpaused(deadline: u64) -> u64 {
    #[cfg(feature = "test-util")]
    let deadline = pause::to_unpaused(deadline);
    deadline
}

impl std::fmt::Debug for Sleep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sleep")
            .field("deadline", &self.deadline())
            .finish_non_exhaustive()
    }
}
