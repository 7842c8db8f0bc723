//! Pauses the time of a runtime, for tests (feature `test-util`).
//!
//! Only the time of a runtime of one inline vCPU (one thread, without preemption) can be paused.
//! While it is paused, this module keeps the runtime's timers instead of the timer wheel, and they
//! fire, in order, when the time is moved. [`advance`] moves the time. When no coroutine of the
//! runtime is ready, the *mover* moves it to the next timer. The mover is a coroutine of the least
//! urgent level, so it runs only when no other coroutine is ready. Before it moves the time, the
//! vCPU processes the completions in its ring. Do not pause the time of code that waits for
//! something outside the runtime (a thread, another process).
//!
//! All state belongs to the thread of the vCPU, so there is no lock.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use upshift_core::Level;

use crate::context;
use crate::sync::wake;
use crate::time::clock;

/// The mover moves the time only if no coroutine has been ready for this long. Meanwhile the vCPU
/// can process the completions in its ring twice.
const IDLE_BEFORE_MOVE: Duration = Duration::from_micros(50);

/// Latest time that [`advance`] moves to, in ns: about 146 years.
const FARTHEST: u64 = u64::MAX / 4;
/// End of the time, in ns: about 292 years. A later deadline counts as this time.
const END: u64 = u64::MAX / 2;

/// A deadline, and a number that distinguishes equal deadlines.
pub(super) type Key = (u64, u64);

/// The time of a runtime that has been paused at least once.
struct Paused {
    /// Number of the runtime.
    runtime: u64,
    /// Time of the runtime in ns, or its time when it was last resumed.
    now: u64,
    /// Moment of the clock (ns) at which the time was resumed and continued from `now`. `None`
    /// while the time is paused.
    resumed: Option<u64>,
    timers: BTreeMap<Key, Waker>,
    /// Number in the key of the newest timer.
    last_number: u64,
    /// Waker of the mover while it waits for a timer.
    mover: Option<Waker>,
}

thread_local! {
    static PAUSED: RefCell<Vec<Paused>> = const { RefCell::new(Vec::new()) };
}

/// Runs `f` with the state of the current runtime. `f` must not run user code. Returns `None` if
/// the time has never been paused.
fn with<R>(f: impl FnOnce(&mut Paused) -> R) -> Option<R> {
    let number = context::with(|worker| worker.shared().number.get())?;
    let mut state = PAUSED
        .try_with(|all| {
            all.try_borrow_mut().ok().map(|mut all| {
                let index = all.iter().position(|paused| paused.runtime == number)?;
                Some(all.swap_remove(index))
            })
        })
        .ok()??;
    let result = state.as_mut().map(f);
    if let Some(paused) = state {
        let _ = PAUSED.try_with(|all| all.borrow_mut().push(paused));
    }
    result
}

/// Returns the time of the current runtime, if it has ever been paused.
pub(super) fn now() -> Option<u64> {
    with(|paused| match paused.resumed {
        None => paused.now,
        Some(then) => paused.now + clock::now().saturating_sub(then),
    })
}

/// Converts a deadline to unpaused time, for the wheel.
pub(super) fn to_unpaused(deadline: u64) -> u64 {
    with(|paused| match paused.resumed {
        Some(then) => deadline.saturating_sub(paused.now).saturating_add(then),
        None => deadline,
    })
    .unwrap_or(deadline)
}

/// Arms a timer. Returns `None` if the time is not paused, and `Some(Err(()))` if the deadline has
/// passed.
pub(super) fn arm(deadline: u64, waker: &Waker) -> Option<Result<Key, ()>> {
    let mut waker = Some(waker.clone());
    let (armed, mover) = with(|paused| {
        if paused.resumed.is_some() {
            return (None, None);
        }
        let deadline = deadline.min(END);
        if deadline <= paused.now {
            return (Some(Err(())), None);
        }
        paused.last_number += 1;
        let key = (deadline, paused.last_number);
        paused.timers.extend(waker.take().map(|waker| (key, waker)));
        (Some(Ok(key)), paused.mover.take())
    })?;
    if let Some(mover) = mover {
        wake(mover);
    }
    armed
}

/// Returns true if the deadline is at or before the present time.
pub(super) fn has_passed(deadline: u64) -> bool {
    super::now() >= deadline.min(END)
}

/// Returns true if the timer has fired. If not, it will wake `waker`.
pub(super) fn has_fired(key: Key, waker: &Waker) -> bool {
    let mut waker = Some(waker.clone());
    with(|paused| match paused.timers.get_mut(&key) {
        Some(stored) => {
            // The former waker is dropped after the state is stored again.
            std::mem::swap(stored, waker.as_mut().expect("cloned above"));
            false
        }
        None => true,
    })
    .unwrap_or(true)
}

/// Cancels the timer. Returns its waker if it has not fired.
pub(super) fn cancel(key: Key) -> Option<Waker> {
    with(|paused| paused.timers.remove(&key)).flatten()
}

impl Paused {
    fn next_deadline(&self) -> Option<u64> {
        self.timers.first_key_value().map(|(key, _)| key.0)
    }

    /// Removes the timers that are due. Returns their wakers.
    fn take_due(&mut self) -> Vec<Waker> {
        let later = self
            .now
            .checked_add(1)
            .map_or_else(BTreeMap::new, |next| self.timers.split_off(&(next, 0)));
        std::mem::replace(&mut self.timers, later)
            .into_values()
            .collect()
    }
}

/// Pauses the time of the runtime. [`Instant::now`](super::Instant::now) then stands still, and
/// timers fire when the time is moved.
///
/// When no coroutine is ready the time moves by itself, to the next timer, so a test that sleeps an
/// hour takes no time. The time ends 292 years after the clock's zero; a longer sleep ends then.
///
/// # Panics
/// Outside a runtime; if the runtime has more than one vCPU, or preemption; if its time is
/// already paused.
///
/// ```
/// use std::time::Duration;
/// use upshift::time::{self, Instant};
///
/// upshift::Runtime::builder().vcpus(1).build()?.block_on(async {
///     time::pause();
///     let began = Instant::now();
///     time::sleep(Duration::from_secs(3600)).await;
///     assert_eq!(began.elapsed(), Duration::from_secs(3600));
/// });
/// # Ok::<(), std::io::Error>(())
/// ```
#[track_caller]
pub fn pause() {
    let current = context::with(|worker| {
        let has_one_vcpu = worker.shared().domain.active_vcpus() == 1;
        let can_pause = has_one_vcpu && worker.is_inline();
        (worker.shared().number.get(), can_pause)
    });
    let Some((runtime, can_pause)) = current else {
        panic!("time can only be paused in a coroutine of upshift");
    };
    assert!(
        can_pause,
        "time can only be paused in a runtime with one vCPU and without preemption"
    );
    let was_paused = with(|paused| {
        let was_paused = paused.resumed.is_none();
        if let Some(then) = paused.resumed.take() {
            paused.now += clock::now().saturating_sub(then);
        }
        was_paused
    });
    match was_paused {
        Some(true) => panic!("time is already paused"),
        Some(false) => return,
        None => {}
    }
    PAUSED.with_borrow_mut(|all| {
        all.push(Paused {
            runtime,
            now: clock::now(),
            resumed: None,
            timers: BTreeMap::new(),
            last_number: 0,
            mover: None,
        });
    });
    let level = Level::new(upshift_core::LEVELS as u8 - 1).unwrap_or_default();
    crate::spawn(mover(), level).detach();
}

/// Resumes the time of the runtime.
///
/// # Panics
/// If the time is not paused.
///
/// ```
/// use std::time::Duration;
/// use upshift::time::{self, Instant};
///
/// upshift::Runtime::builder().vcpus(1).build()?.block_on(async {
///     time::pause();
///     let paused = Instant::now();
///     time::resume();
///     time::sleep(Duration::from_millis(1)).await; // A real millisecond.
///     assert!(paused.elapsed() >= Duration::from_millis(1));
/// });
/// # Ok::<(), std::io::Error>(())
/// ```
#[track_caller]
pub fn resume() {
    let wakers = with(|paused| {
        if paused.resumed.is_some() {
            return None;
        }
        paused.resumed = Some(clock::now());
        // The futures are woken, and then arm their timers in the wheel.
        Some(std::mem::take(&mut paused.timers))
    });
    match wakers.flatten() {
        Some(timers) => timers.into_values().for_each(wake),
        None => panic!("time is not paused"),
    }
}

/// Moves the time by a duration. Timers that are due by then fire, and their coroutines run before
/// the future is ready. The time moves to 146 years after the clock's zero at most.
///
/// # Cancellation safety
/// The time moves at the first poll; a dropped future does not move it back.
///
/// # Panics
/// If the time is not paused.
///
/// ```
/// use std::time::Duration;
/// use upshift::time::{self, Instant};
///
/// upshift::Runtime::builder().vcpus(1).build()?.block_on(async {
///     time::pause();
///     let start = Instant::now();
///     time::advance(Duration::from_secs(60)).await;
///     assert_eq!(start.elapsed(), Duration::from_secs(60));
/// });
/// # Ok::<(), std::io::Error>(())
/// ```
pub async fn advance(duration: Duration) {
    let wakers = with(|paused| {
        paused.resumed.is_none().then(|| {
            let to = paused.now.saturating_add(clock::nanos(duration));
            paused.now = to.min(FARTHEST).max(paused.now);
            paused.take_due()
        })
    });
    match wakers.flatten() {
        Some(wakers) => wakers.into_iter().for_each(wake),
        None => panic!("time is not paused"),
    }
    crate::yield_now().await;
}

/// Moves the time to the next timer whenever no other coroutine is ready.
async fn mover() {
    loop {
        poll_fn(poll_has_timer).await;
        let idle_until = clock::now() + clock::nanos(IDLE_BEFORE_MOVE);
        while clock::now() < idle_until {
            crate::yield_now().await;
        }
        let wakers = with(|paused| {
            if paused.resumed.is_none()
                && let Some(next) = paused.next_deadline()
            {
                paused.now = paused.now.max(next);
                return paused.take_due();
            }
            Vec::new()
        });
        wakers.into_iter().flatten().for_each(wake);
    }
}

/// Waits until a timer is armed.
fn poll_has_timer(cx: &mut Context<'_>) -> Poll<()> {
    let waker = cx.waker().clone();
    let armed = with(|paused| {
        let armed = paused.next_deadline().is_some();
        if !armed {
            paused.mover = Some(waker);
        }
        armed
    });
    match armed {
        Some(false) => Poll::Pending,
        _ => Poll::Ready(()),
    }
}
