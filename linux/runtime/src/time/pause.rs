//! Time that stands still, for tests (feature `test-util`).
//!
//! A runtime of one inline vCPU may have its time paused: then its timers lie here, in order,
//! instead of in the wheel, and go off when the time is moved: by [`advance`], or, when nothing
//! of the runtime is ready, by the *mover*, to the next timer. The mover is a coroutine of the
//! least urgent level, so it runs when nothing else is ready; and it lets the ring be looked at
//! before it moves. Code that waits for something outside (a thread, another process) should not
//! have its time paused.
//!
//! Everything belongs to the thread of the vCPU, so there is no lock.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use upshift_core::Level;

use crate::context;
use crate::sync::wake;
use crate::time::clock;

/// How long nothing must be ready before the mover moves: enough for two looks at the ring.
const IDLE_BEFORE_MOVE: Duration = Duration::from_micros(50);

/// [`advance`] moves the time no further, ns: some 146 years.
const FARTHEST: u64 = u64::MAX / 4;
/// The end of the time, ns: some 292 years. A later deadline counts as this one.
const END: u64 = u64::MAX / 2;

/// The deadline, and a number that tells equals apart.
pub(super) type Key = (u64, u64);

struct Paused {
    /// Of which runtime.
    runtime: u64,
    now: u64,
    /// `None`: the time goes on, from `now` at this moment of the clock.
    resumed: Option<u64>,
    timers: BTreeMap<Key, Waker>,
    numbers: u64,
    mover: Option<Waker>,
}

thread_local! {
    /// Those of the thread's runtimes whose time has been paused.
    static PAUSED: RefCell<Vec<Paused>> = const { RefCell::new(Vec::new()) };
}

/// Runs `f`, which runs no code of users, with the state of the current runtime.
fn with<R>(f: impl FnOnce(&mut Paused) -> R) -> Option<R> {
    let number = context::with(|worker| worker.shared().number.get())?;
    let mut all = PAUSED
        .try_with(|all| {
            all.try_borrow_mut().ok().map(|mut all| {
                let at = all.iter().position(|paused| paused.runtime == number)?;
                Some(all.swap_remove(at))
            })
        })
        .ok()??;
    let result = all.as_mut().map(f);
    if let Some(paused) = all {
        let _ = PAUSED.try_with(|all| all.borrow_mut().push(paused));
    }
    result
}

/// The time of the current runtime, if it has ever been paused.
pub(super) fn now() -> Option<u64> {
    with(|paused| match paused.resumed {
        None => paused.now,
        Some(then) => paused.now + clock::now().saturating_sub(then),
    })
}

/// What the wheel is to be given for a deadline.
pub(super) fn real(deadline: u64) -> u64 {
    with(|paused| match paused.resumed {
        Some(then) => deadline.saturating_sub(paused.now).saturating_add(then),
        None => deadline,
    })
    .unwrap_or(deadline)
}

/// Arms a timer, if the time is paused. `Err`: the deadline has passed.
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
        paused.numbers += 1;
        let key = (deadline, paused.numbers);
        paused.timers.extend(waker.take().map(|waker| (key, waker)));
        (Some(Ok(key)), paused.mover.take())
    })?;
    if let Some(mover) = mover {
        wake(mover);
    }
    armed
}

/// Returns whether the time of the current runtime has come to a deadline.
pub(super) fn has_come(deadline: u64) -> bool {
    super::now() >= deadline.min(END)
}

/// Has it gone off? If not, this waker is woken in future.
pub(super) fn has_fired(key: Key, waker: &Waker) -> bool {
    let mut waker = Some(waker.clone());
    with(|paused| match paused.timers.get_mut(&key) {
        Some(place) => {
            // The one before is dropped when the state is back in its place.
            std::mem::swap(place, waker.as_mut().expect("cloned above"));
            false
        }
        None => true,
    })
    .unwrap_or(true)
}

/// Takes the timer away; the waker if it has not gone off.
pub(super) fn cancel(key: Key) -> Option<Waker> {
    with(|paused| paused.timers.remove(&key)).flatten()
}

impl Paused {
    fn next(&self) -> Option<u64> {
        self.timers.first_key_value().map(|(key, _)| key.0)
    }

    fn due(&mut self) -> Vec<Waker> {
        let later = self
            .now
            .checked_add(1)
            .map_or_else(BTreeMap::new, |next| self.timers.split_off(&(next, 0)));
        std::mem::replace(&mut self.timers, later)
            .into_values()
            .collect()
    }
}

/// Stops the time of the runtime: [`Instant::now`](super::Instant::now) stands still, and
/// timers go off when it is moved.
///
/// When nothing is ready it moves by itself, to the next timer: a test that sleeps an hour takes
/// no time. It ends after 292 years: a longer sleep ends then.
///
/// # Panics
/// Outside a runtime; if it has more than one vCPU, or preemption; if its time stands still
/// already.
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
    let found = context::with(|worker| {
        let alone = worker.shared().domain.active_vcpus() == 1;
        (worker.shared().number.get(), alone && worker.is_inline())
    });
    let Some((runtime, alone)) = found else {
        panic!("time is paused in a coroutine");
    };
    assert!(
        alone,
        "time can be paused in a runtime with one vCPU and without preemption"
    );
    let before = with(|paused| {
        let stood = paused.resumed.is_none();
        if let Some(then) = paused.resumed.take() {
            paused.now += clock::now().saturating_sub(then);
        }
        stood
    });
    match before {
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
            numbers: 0,
            mover: None,
        });
    });
    let level = Level::new(upshift_core::LEVELS as u8 - 1).unwrap_or_default();
    crate::spawn(mover(), level).detach();
}

/// Lets the time go on.
///
/// # Panics
/// If it does.
#[track_caller]
pub fn resume() {
    let woken = with(|paused| {
        if paused.resumed.is_some() {
            return None;
        }
        paused.resumed = Some(clock::now());
        // They arm in the wheel.
        Some(std::mem::take(&mut paused.timers))
    });
    match woken.flatten() {
        Some(timers) => timers.into_values().for_each(wake),
        None => panic!("time is not paused"),
    }
}

/// Moves the time by a duration: what is due by then goes off, and runs before this returns. It moves no further than 146 years in all.
///
/// # Panics
/// If the time is not paused.
pub async fn advance(duration: Duration) {
    let woken = with(|paused| {
        paused.resumed.is_none().then(|| {
            let to = paused.now.saturating_add(clock::nanos(duration));
            paused.now = to.min(FARTHEST).max(paused.now);
            paused.due()
        })
    });
    match woken.flatten() {
        Some(woken) => woken.into_iter().for_each(wake),
        None => panic!("time is not paused"),
    }
    crate::yield_now().await;
}

/// See the module.
async fn mover() {
    loop {
        poll_fn(has_timer).await;
        let quiet = clock::now() + clock::nanos(IDLE_BEFORE_MOVE);
        while clock::now() < quiet {
            crate::yield_now().await;
        }
        let woken = with(|paused| {
            if paused.resumed.is_none()
                && let Some(next) = paused.next()
            {
                paused.now = paused.now.max(next);
                return paused.due();
            }
            Vec::new()
        });
        woken.into_iter().flatten().for_each(wake);
    }
}

fn has_timer(cx: &mut Context<'_>) -> Poll<()> {
    let waker = cx.waker().clone();
    let armed = with(|paused| {
        let armed = paused.next().is_some();
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
