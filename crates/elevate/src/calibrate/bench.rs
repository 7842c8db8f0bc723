//! The measurer of a calibration: elevates both threads, takes the samples.
//!
//! The measurer is a thread of its own, so the caller's policy is never touched.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32};
use std::time::{Duration, Instant};

use super::worker::{HOPS, SPIN, STOP, SWITCH, Shared, tell, wait, wake, work};
use super::{CalibrateError, Calibration, DELAYS_US, Quantiles, TimerFloor, nanos};
use crate::elevator::{Elevated, Elevator};
use crate::priority::Bands;

/// Samples of each kind, and how many are the least to say something.
const SWITCHES: usize = 4000;
const CHANGES: usize = 4000;
const HOP_PAIRS: usize = 3000;
const TIMERS: usize = 200;
const LEAST: usize = 50;

/// Measures on `cpu` until `deadline` at the latest. `took` is left to the caller.
pub(super) fn run(
    elevator: &Elevator,
    bands: Bands,
    cpu: usize,
    deadline: Instant,
) -> Result<Calibration, CalibrateError> {
    let shared = Shared {
        mode: AtomicU32::new(SWITCH),
        tid: AtomicI32::new(0),
        ready: AtomicBool::new(false),
        ball: AtomicU32::new(0),
        deadline,
    };
    // The worker's guard: it demotes itself by it, and the measurer raises it.
    let guard: OnceLock<Elevated> = OnceLock::new();
    std::thread::scope(|scope| {
        let worker = std::thread::Builder::new()
            .name("upshift-worker".into())
            .spawn_scoped(scope, || work(&shared, bands.demoted(), &guard))?;
        let measurer = std::thread::Builder::new()
            .name("upshift-measure".into())
            .spawn_scoped(scope, || {
                let result = measure(elevator, bands, cpu, &shared, &guard);
                tell(&shared, STOP);
                shared.ready.store(true, Release);
                result
            });
        let measured = match measurer {
            Ok(thread) => thread.join(),
            Err(error) => {
                tell(&shared, STOP);
                shared.ready.store(true, Release);
                Ok(Err(error.into()))
            }
        };
        let _ = worker.join();
        measured.unwrap_or(Err(CalibrateError::TooBusy))
    })
}

fn measure(
    elevator: &Elevator,
    bands: Bands,
    cpu: usize,
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
    let worker = elevator.elevate(shared.tid.load(Acquire), bands.demoted())?;
    worker.pin(cpu)?;
    let worker = guard.get_or_init(|| worker);
    shared.ready.store(true, Release);
    // The worker wakes from its nap, demoted, and reaches its loop while we sleep.
    std::thread::sleep(Duration::from_millis(2));

    let mut switches = Vec::with_capacity(SWITCHES);
    for _ in 0..SWITCHES {
        let began = Instant::now();
        worker.set(bands.dispatcher())?;
        switches.push(nanos(began.elapsed()));
        if shared.is_over() {
            break;
        }
    }

    let mut changes = Vec::with_capacity(CHANGES);
    for round in 0..CHANGES {
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

    tell(shared, SPIN);
    let timers = timers(shared)?;

    tell(shared, HOPS);
    worker.set(bands.elevated())?;
    let mut hops = Vec::with_capacity(HOP_PAIRS);
    for _ in 0..HOP_PAIRS {
        let began = Instant::now();
        shared.ball.store(1, Release);
        wake(&shared.ball);
        while shared.ball.load(Acquire) == 1 {
            wait(&shared.ball, 1);
            if shared.is_over() {
                break;
            }
        }
        hops.push(nanos(began.elapsed()) / 2);
        if shared.is_over() {
            break;
        }
    }
    if hops.len() < LEAST {
        return Err(CalibrateError::TooBusy);
    }
    Ok(Calibration {
        cpu,
        switch: Quantiles::of(&mut switches),
        change: Quantiles::of(&mut changes),
        hand_over: Quantiles::of(&mut hops),
        timers,
        took: Duration::ZERO,
    })
}

/// One-shot timers against a worker that spins below.
fn timers(shared: &Shared) -> Result<Vec<TimerFloor>, CalibrateError> {
    // SAFETY: integers only.
    let fd = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    // SAFETY: just opened, owned by nobody else.
    let timer = unsafe { OwnedFd::from_raw_fd(fd) };
    DELAYS_US
        .iter()
        .map(|delay| one_delay(&timer, delay * 1000, shared))
        .collect()
}

fn one_delay(
    timer: &OwnedFd,
    asked_ns: u64,
    shared: &Shared,
) -> Result<TimerFloor, CalibrateError> {
    let mut arming = Vec::with_capacity(TIMERS);
    let mut lateness = Vec::with_capacity(TIMERS);
    for _ in 0..TIMERS {
        let began = now_ns();
        let due = began + asked_ns;
        let spec = libc::itimerspec {
            it_interval: timespec(0),
            it_value: timespec(due),
        };
        // SAFETY: a live descriptor and a live structure; the former setting is not asked for.
        let armed = unsafe {
            libc::timerfd_settime(
                timer.as_raw_fd(),
                libc::TFD_TIMER_ABSTIME,
                &raw const spec,
                std::ptr::null_mut(),
            )
        };
        if armed != 0 {
            return Err(std::io::Error::last_os_error().into());
        }
        arming.push(now_ns() - began);
        let mut expirations = 0u64;
        // SAFETY: eight bytes are read into eight live bytes. The timer is armed, so the read ends.
        let got = unsafe { libc::read(timer.as_raw_fd(), (&raw mut expirations).cast(), 8) };
        if got == 8 {
            lateness.push(now_ns().saturating_sub(due));
        }
        if shared.is_over() {
            break;
        }
    }
    if lateness.len() < LEAST {
        return Err(CalibrateError::TooBusy);
    }
    Ok(TimerFloor {
        asked_ns,
        arming: Quantiles::of(&mut arming),
        lateness: Quantiles::of(&mut lateness),
    })
}

/// CLOCK_MONOTONIC, ns: absolute, as timers take it.
fn now_ns() -> u64 {
    let mut now = timespec(0);
    // SAFETY: a live structure; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn timespec(ns: u64) -> libc::timespec {
    libc::timespec {
        tv_sec: (ns / 1_000_000_000) as libc::time_t,
        tv_nsec: (ns % 1_000_000_000) as libc::c_long,
    }
}
