//! The measurer of a calibration: a thread that puts itself and its partner thread into SCHED_FIFO,
//! and takes samples.
//!
//! The measurer is a thread of its own, so the policy of the caller's thread is never touched.
//! After each [`PAUSE_INTERVAL`] of measurement, both threads sleep for a [`PAUSE`], so that all
//! other threads may run.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64};
use std::time::{Duration, Instant};

use super::partner::{PING_PONG, SLEEP, SPIN, STOP, SWITCH, Shared, run_partner, set_mode, wait};
use super::{CalibrateError, Calibration, DELAYS_US, Quantiles, TimerFloor, nanos};
use crate::elevated::Elevated;
use crate::elevator::Elevator;
use crate::futex::futex_wake;
use crate::priority::Bands;

#[derive(Debug, Clone, Copy)]
pub(super) struct SampleCounts {
    /// Number of switches between the two threads.
    switches: usize,
    /// Number of changes of priority without a switch.
    changes: usize,
    /// Number of times that the measurer passes the token to the partner and gets it back.
    hops: usize,
    /// Number of timers of each delay.
    timers: usize,
    /// Number of looks in all rounds together.
    looks: u64,
    /// Minimum number of samples for a meaningful result.
    min_meaningful: usize,
}

impl SampleCounts {
    /// Numbers for a calibration of about 200 ms.
    pub(super) const FULL: SampleCounts = SampleCounts {
        switches: 4000,
        changes: 4000,
        hops: 3000,
        timers: 200,
        looks: 200,
        min_meaningful: 50,
    };
    /// Numbers for a calibration of about 20 ms, which suffice for medians only.
    pub(super) const BRIEF: SampleCounts = SampleCounts {
        switches: 200,
        changes: 200,
        hops: 200,
        timers: 12,
        looks: 40,
        min_meaningful: 8,
    };
}

/// Number of rounds in which the cost of a look is measured.
const LOOK_ROUNDS: u64 = 4;
/// Time between two looks when their cost is measured.
const LOOK_INTERVAL: Duration = Duration::from_micros(100);

/// Maximum time without a pause. The Upshift daemon raises an alarm if real-time threads occupy a
/// CPU for four times as long.
const PAUSE_INTERVAL: Duration = Duration::from_millis(20);
/// Length of a pause, in which waiting ordinary threads get a time slice.
const PAUSE: Duration = Duration::from_millis(5);

struct Pauses<'a> {
    shared: &'a Shared,
    last: Instant,
}

impl Pauses<'_> {
    /// Pauses both threads if [`PAUSE_INTERVAL`] has passed since the last pause.
    fn pause_if_due(&mut self) {
        if self.last.elapsed() < PAUSE_INTERVAL {
            return;
        }
        let mode = self.shared.mode.load(Acquire);
        set_mode(self.shared, SLEEP);
        std::thread::sleep(PAUSE);
        set_mode(self.shared, mode);
        self.last = Instant::now();
    }
}

/// Measures on `cpu` until `deadline` at the latest. The caller sets [`Calibration::took`].
pub(super) fn run(
    elevator: &Elevator,
    bands: Bands,
    cpu: usize,
    samples: SampleCounts,
    deadline: Instant,
) -> Result<Calibration, CalibrateError> {
    let shared = Shared {
        mode: AtomicU32::new(SWITCH),
        tid: AtomicI32::new(0),
        ready: AtomicBool::new(false),
        token: AtomicU32::new(0),
        spins: AtomicU64::new(0),
        deadline,
    };
    // The partner demotes itself through its guard; the measurer raises it through the same guard.
    let guard: OnceLock<Elevated> = OnceLock::new();
    std::thread::scope(|scope| {
        let partner = std::thread::Builder::new()
            .name("upshift-partner".into())
            .spawn_scoped(scope, || run_partner(&shared, bands.demoted(), &guard))?;
        let measurer = std::thread::Builder::new()
            .name("upshift-measure".into())
            .spawn_scoped(scope, || {
                let result = measure(elevator, bands, cpu, samples, &shared, &guard);
                set_mode(&shared, STOP);
                shared.ready.store(true, Release);
                result
            });
        let measured = match measurer {
            Ok(thread) => thread.join(),
            Err(error) => {
                set_mode(&shared, STOP);
                shared.ready.store(true, Release);
                Ok(Err(error.into()))
            }
        };
        let _ = partner.join();
        measured.unwrap_or(Err(CalibrateError::TooBusy))
    })
}

fn measure(
    elevator: &Elevator,
    bands: Bands,
    cpu: usize,
    samples: SampleCounts,
    shared: &Shared,
    guard: &OnceLock<Elevated>,
) -> Result<Calibration, CalibrateError> {
    while shared.tid.load(Acquire) == 0 {
        if shared.is_over() {
            return Err(CalibrateError::TooBusy);
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    let measurer = elevator.elevate_current(bands.elevated())?;
    measurer.pin(cpu)?;
    let partner = elevator.elevate(shared.tid.load(Acquire), bands.demoted())?;
    partner.pin(cpu)?;
    let partner = guard.get_or_init(|| partner);
    shared.ready.store(true, Release);
    // During this sleep the demoted partner wakes from its own sleep and reaches its loop.
    std::thread::sleep(Duration::from_millis(2));
    let last = Instant::now();
    let mut pauses = Pauses { shared, last };

    let mut switches = Vec::with_capacity(samples.switches);
    for _ in 0..samples.switches {
        pauses.pause_if_due();
        let began = Instant::now();
        partner.set(bands.dispatcher())?;
        switches.push(nanos(began.elapsed()));
        if shared.is_over() {
            break;
        }
    }

    let mut changes = Vec::with_capacity(samples.changes);
    for round in 0..samples.changes {
        pauses.pause_if_due();
        let to = if round % 2 == 0 {
            bands.dispatcher()
        } else {
            bands.elevated()
        };
        let began = Instant::now();
        measurer.set(to)?;
        changes.push(nanos(began.elapsed()));
        if shared.is_over() {
            break;
        }
    }
    measurer.set(bands.elevated())?;

    set_mode(shared, SPIN);
    let timers = timers(samples, shared, &mut pauses)?;
    let look = look_cost(samples, shared, &mut pauses)?;

    set_mode(shared, PING_PONG);
    partner.set(bands.elevated())?;
    let mut hops = Vec::with_capacity(samples.hops);
    for _ in 0..samples.hops {
        pauses.pause_if_due();
        let began = Instant::now();
        shared.token.store(1, Release);
        futex_wake(&shared.token);
        while shared.token.load(Acquire) == 1 {
            wait(&shared.token, 1);
            if shared.is_over() {
                break;
            }
        }
        hops.push(nanos(began.elapsed()) / 2);
        if shared.is_over() {
            break;
        }
    }
    if hops.len() < samples.min_meaningful {
        return Err(CalibrateError::TooBusy);
    }
    Ok(Calibration {
        cpu,
        switch: Quantiles::of(&mut switches),
        change: Quantiles::of(&mut changes),
        hand_over: Quantiles::of(&mut hops),
        timers,
        look,
        took: Duration::ZERO,
    })
}

/// Measures one-shot timers while the partner spins at a lower priority.
fn timers(
    samples: SampleCounts,
    shared: &Shared,
    pauses: &mut Pauses<'_>,
) -> Result<Vec<TimerFloor>, CalibrateError> {
    let timer = timer()?;
    DELAYS_US
        .iter()
        .map(|delay| measure_delay(&timer, delay * 1000, samples, shared, pauses))
        .collect()
}

fn measure_delay(
    timer: &OwnedFd,
    requested_ns: u64,
    samples: SampleCounts,
    shared: &Shared,
    pauses: &mut Pauses<'_>,
) -> Result<TimerFloor, CalibrateError> {
    let mut arming = Vec::with_capacity(samples.timers);
    let mut lateness = Vec::with_capacity(samples.timers);
    for _ in 0..samples.timers {
        pauses.pause_if_due();
        let began = now_ns();
        let due = began + requested_ns;
        arm(timer, due)?;
        arming.push(now_ns() - began);
        if wait_for(timer) {
            lateness.push(now_ns().saturating_sub(due));
        }
        if shared.is_over() {
            break;
        }
    }
    if lateness.len() < samples.min_meaningful {
        return Err(CalibrateError::TooBusy);
    }
    Ok(TimerFloor {
        requested_ns,
        arming: Quantiles::of(&mut arming),
        lateness: Quantiles::of(&mut lateness),
    })
}

/// Returns the time that one look takes from the thread that it interrupts. Compares the partner's
/// speed under regular looks with its undisturbed speed. Of several rounds of each kind only the
/// fastest counts, because other activity can only slow a round down.
fn look_cost(
    samples: SampleCounts,
    shared: &Shared,
    pauses: &mut Pauses<'_>,
) -> Result<Duration, CalibrateError> {
    let timer = timer()?;
    let interval = nanos(LOOK_INTERVAL);
    let looks = samples.looks / LOOK_ROUNDS;
    let mut undisturbed = 0.0_f64;
    // The speed, and the actual time between two looks, because looks come late.
    let mut disturbed = (0.0_f64, 0.0_f64);
    for _ in 0..LOOK_ROUNDS {
        pauses.pause_if_due();
        undisturbed = undisturbed.max(spins_per_ns(shared, || {
            arm(&timer, now_ns() + interval * looks)?;
            wait_for(&timer);
            Ok(())
        })?);
        pauses.pause_if_due();
        let began = now_ns();
        let spins = spins_per_ns(shared, || {
            for _ in 0..looks {
                arm(&timer, now_ns() + interval)?;
                wait_for(&timer);
            }
            Ok(())
        })?;
        if spins > disturbed.0 {
            disturbed = (spins, (now_ns() - began) as f64 / looks as f64);
        }
    }
    if undisturbed <= 0.0 {
        return Err(CalibrateError::TooBusy);
    }
    let lost_share = (1.0 - disturbed.0 / undisturbed).max(0.0);
    Ok(Duration::from_nanos((lost_share * disturbed.1) as u64))
}

/// Returns the speed of the partner while `wait` lasts.
fn spins_per_ns(
    shared: &Shared,
    wait: impl FnOnce() -> std::io::Result<()>,
) -> Result<f64, CalibrateError> {
    let (spins, began) = (shared.spins.load(Relaxed), now_ns());
    wait()?;
    let done = shared.spins.load(Relaxed) - spins;
    Ok(done as f64 / (now_ns() - began).max(1) as f64)
}

fn timer() -> std::io::Result<OwnedFd> {
    // SAFETY: the call takes only integers, so it has no preconditions.
    let fd = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just opened and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Arms a one-shot timer for the time `due` of CLOCK_MONOTONIC, in ns.
fn arm(timer: &OwnedFd, due: u64) -> std::io::Result<()> {
    let spec = libc::itimerspec {
        it_interval: timespec(0),
        it_value: timespec(due),
    };
    // SAFETY: the pointer is valid for the type that the call reads; the null pointer means that
    // the former setting is not requested.
    let armed = unsafe {
        libc::timerfd_settime(
            timer.as_raw_fd(),
            libc::TFD_TIMER_ABSTIME,
            &raw const spec,
            std::ptr::null_mut(),
        )
    };
    if armed == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error())
    }
}

/// Sleeps until an armed timer expires. Returns false if a signal interrupts the sleep.
fn wait_for(timer: &OwnedFd) -> bool {
    let mut expirations = 0u64;
    // SAFETY: at most eight bytes are written to `expirations`.
    unsafe { libc::read(timer.as_raw_fd(), (&raw mut expirations).cast(), 8) == 8 }
}

fn now_ns() -> u64 {
    let mut now = timespec(0);
    // SAFETY: the pointer is valid for the type that the call writes.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn timespec(ns: u64) -> libc::timespec {
    libc::timespec {
        tv_sec: (ns / 1_000_000_000) as libc::time_t,
        tv_nsec: (ns % 1_000_000_000) as libc::c_long,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait_until(shared: &Shared, mut condition: impl FnMut() -> bool) {
        while !condition() {
            assert!(!shared.is_over(), "the deadline has passed");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn the_partner_sleeps_in_a_pause_and_continues_with_its_mode() {
        let shared = Shared {
            mode: AtomicU32::new(SPIN),
            tid: AtomicI32::new(0),
            ready: AtomicBool::new(false),
            token: AtomicU32::new(0),
            spins: AtomicU64::new(0),
            deadline: Instant::now() + Duration::from_secs(60),
        };
        let elevator = Elevator::new().unwrap();
        let guard = OnceLock::new();
        std::thread::scope(|scope| {
            scope.spawn(|| run_partner(&shared, crate::Priority::MIN, &guard));
            wait_until(&shared, || shared.tid.load(Acquire) != 0);
            // The partner is recorded but not elevated, so no rights are needed.
            let record = elevator.record(shared.tid.load(Acquire)).unwrap();
            guard.get_or_init(|| record);
            shared.ready.store(true, Release);

            let spins = || shared.spins.load(Relaxed);
            wait_until(&shared, || spins() > 0);
            set_mode(&shared, SLEEP);
            let (mut last, mut unchanged) = (0, 0);
            wait_until(&shared, || {
                unchanged = if spins() == last { unchanged + 1 } else { 0 };
                last = spins();
                unchanged == 20
            });
            set_mode(&shared, SPIN);
            wait_until(&shared, || spins() > last);

            let mut pauses = Pauses {
                shared: &shared,
                last: Instant::now(),
            };
            let first = pauses.last;
            wait_until(&shared, || {
                pauses.pause_if_due();
                pauses.last > first
            });
            assert!(pauses.last - first >= PAUSE_INTERVAL + PAUSE);
            assert_eq!(shared.mode.load(Acquire), SPIN);
            set_mode(&shared, STOP);
        });
    }
}
