//! The runtime's two clocks: nanoseconds of `CLOCK_MONOTONIC` for timers, and ticks for the
//! scheduler's accounting.
//!
//! A tick is one count of the time-stamp counter where the kernel itself trusts the counter, else a
//! nanosecond. The length of a tick is measured once, against `CLOCK_MONOTONIC`.
//!
//! The counter may be set back while the machine sleeps (ACPI S3). Ticks then continue from the
//! last reading of the thread that notices this first, because the process adds an offset to the
//! counter.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Returns the time in nanoseconds of `CLOCK_MONOTONIC`.
pub(crate) fn now() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is to a local, so it is valid for the write of the time. This clock
    // always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

thread_local! {
    /// The thread's last reading of both clocks: ticks, then nanoseconds.
    static READING: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

/// Number of microseconds for which a thread counts ticks from its last reading of
/// `CLOCK_MONOTONIC`.
const READING_MICROS: u64 = 5;
/// Nanoseconds added to a time that is counted in ticks, so that it is not early. The margin is a
/// fifth of [`READING_MICROS`], because the kernel slews its clock by a tenth at most
/// (`adjtimex(2)`), and may do so both now and while the tick is measured. The margin also covers a
/// CPU that reads its counter out of order, before the caller's preceding reading of a clock has
/// ended.
const MARGIN: u64 = 1024;

/// Returns the start of a timer's duration: [`now`], or later by at most twice [`MARGIN`]. If the
/// thread has read the clock within [`READING_MICROS`], this reads only the counter.
#[inline]
pub(crate) fn now_or_later() -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        let tick = tick();
        if tick.uses_counter {
            // A fence would keep the order of readings, but cost more than the whole function.
            // SAFETY: every x86-64 CPU has the counter.
            let ticks = unsafe { core::arch::x86_64::_rdtsc() };
            let (then, nanos) = READING.get();
            let age = ticks.wrapping_sub(then);
            if age < READING_MICROS * tick.per_micro {
                return nanos + ((age * tick.nanos) >> TICK_BITS) + MARGIN;
            }
            return read(ticks, tick);
        }
    }
    now()
}

/// Reads `CLOCK_MONOTONIC` after the ticks, so that times counted from this pair are late rather
/// than early. Returns the start of a timer's duration.
#[cfg(target_arch = "x86_64")]
fn read(ticks: u64, tick: &Tick) -> u64 {
    let (nanos, elapsed_ticks) = nanos_after(ticks);
    // A thread that was interrupted between the readings keeps its former pair.
    if elapsed_ticks < tick.per_micro * MARGIN / 1000 {
        READING.set((ticks, nanos));
    }
    nanos + MARGIN
}

/// Returns the time in nanoseconds, and an upper bound of the ticks since the reading `ticks`.
#[cfg(target_arch = "x86_64")]
fn nanos_after(ticks: u64) -> (u64, u64) {
    let nanos = now();
    // SAFETY: every x86-64 CPU has the counter.
    let after = unsafe { core::arch::x86_64::_rdtsc() };
    (nanos, after.wrapping_sub(ticks))
}

/// Returns one moment as an `Instant` and in nanoseconds: the tightest of several readings of both,
/// with the nanoseconds late rather than early. All threads share this moment, so deadlines keep
/// the order and the distance of their instants, even if a thread loses the CPU while it reads.
fn moment() -> (Instant, u64) {
    static MOMENT: OnceLock<(Instant, u64)> = OnceLock::new();
    *MOMENT.get_or_init(|| {
        let reading = |_| {
            let before = now();
            let instant = Instant::now();
            let after = now();
            (after - before, (instant, after))
        };
        let tightest = (0..32).map(reading).min_by_key(|reading| reading.0);
        tightest.map_or_else(|| (Instant::now(), now()), |(_, moment)| moment)
    })
}

/// Returns the nanoseconds of an instant: 0 if it precedes the clock's zero, `u64::MAX` if it is
/// too far to count.
pub(crate) fn from_instant(instant: Instant) -> u64 {
    let (instant_zero, nanos_zero) = moment();
    match instant.checked_duration_since(instant_zero) {
        Some(ahead) => nanos_zero.saturating_add(nanos(ahead)),
        None => nanos_zero.saturating_sub(nanos(instant_zero.duration_since(instant))),
    }
}

/// Converts nanoseconds of `CLOCK_MONOTONIC` into an instant.
pub(crate) fn to_instant(nanos: u64) -> Instant {
    let (instant_zero, nanos_zero) = moment();
    if nanos >= nanos_zero {
        let ahead = Duration::from_nanos(nanos - nanos_zero);
        // A deadline that no `Instant` can represent becomes a deadline in a century.
        instant_zero
            .checked_add(ahead)
            .unwrap_or(instant_zero + Duration::from_secs(100 * 365 * 86_400))
    } else {
        instant_zero
            .checked_sub(Duration::from_nanos(nanos_zero - nanos))
            .unwrap_or(instant_zero)
    }
}

/// Converts a duration to nanoseconds, at most `u64::MAX`.
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[inline]
pub(crate) fn ticks() -> u64 {
    Ticks::new().ticks()
}

/// A reader of [`ticks`] for a caller that reads them at each poll: it stores the choice of the
/// clock.
#[derive(Clone, Copy)]
pub(crate) struct Ticks {
    uses_counter: bool,
}

impl Ticks {
    pub(crate) fn new() -> Ticks {
        Ticks {
            uses_counter: tick().uses_counter,
        }
    }

    #[inline]
    pub(crate) fn ticks(self) -> u64 {
        #[cfg(target_arch = "x86_64")]
        if self.uses_counter {
            // SAFETY: every x86-64 CPU has the counter.
            let counter = unsafe { core::arch::x86_64::_rdtsc() };
            return counter.wrapping_add(OFFSET.load(Ordering::Relaxed));
        }
        now()
    }
}

/// Number by which ticks are ahead of a counter that has been set back.
static OFFSET: AtomicU64 = AtomicU64::new(0);

/// Number of microseconds by which a reading may exceed the next reading although no counter was
/// set back. Where the kernel trusts the counters, those of two CPUs differ by less than 1 µs.
const MAX_SKEW_MICROS: u64 = 100;

/// Returns the present ticks, at least `before`, an earlier reading. If the counter has been set
/// back, ticks continue from that reading, for all threads.
pub(crate) fn ticks_after(before: u64) -> u64 {
    let offset = OFFSET.load(Ordering::Relaxed);
    let behind = before.saturating_sub(ticks());
    if behind > MAX_SKEW_MICROS * tick().per_micro {
        // Only one thread succeeds, because any other thread that noticed the same finds another
        // offset.
        let ahead = offset.wrapping_add(behind);
        let _ = OFFSET.compare_exchange(offset, ahead, Ordering::Relaxed, Ordering::Relaxed);
    }
    ticks().max(before)
}

/// The length of a tick.
struct Tick {
    /// True if ticks are counts of the time-stamp counter, false if they are nanoseconds.
    uses_counter: bool,
    /// Ticks per microsecond.
    per_micro: u64,
    /// Nanoseconds per tick, with [`TICK_BITS`] binary places.
    nanos: u64,
}

/// Number of binary places of [`Tick::nanos`].
const TICK_BITS: u32 = 32;

impl Tick {
    fn new(uses_counter: bool, per_micro: u64) -> Tick {
        Tick {
            uses_counter,
            per_micro,
            nanos: (1000 << TICK_BITS) / per_micro,
        }
    }
}

static TICK: OnceLock<Tick> = OnceLock::new();

#[inline]
fn tick() -> &'static Tick {
    TICK.get_or_init(measure)
}

/// Chooses the clock of the ticks, and measures the length of a tick.
#[cold]
fn measure() -> Tick {
    // The kernel has checked the counter's steadiness across CPUs.
    let source =
        std::fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    let uses_counter =
        cfg!(target_arch = "x86_64") && source.is_ok_and(|source| source.trim() == "tsc");
    #[cfg(target_arch = "x86_64")]
    if uses_counter {
        // The tightest of several readings at both ends, because timers rely on the result and the
        // thread may lose the CPU during a reading.
        let read_both = || {
            let reading = |_| {
                // SAFETY: every x86-64 CPU has the counter.
                let ticks = unsafe { core::arch::x86_64::_rdtsc() };
                let (nanos, elapsed_ticks) = nanos_after(ticks);
                (elapsed_ticks, ticks, nanos)
            };
            let (_, ticks, nanos) = (0..32).map(reading).min().unwrap_or_default();
            (ticks, nanos)
        };
        let (ticks, nanos) = read_both();
        while now() - nanos < 500_000 {
            core::hint::spin_loop();
        }
        let (later, after) = read_both();
        return Tick::new(
            uses_counter,
            ((later - ticks) * 1000 / (after - nanos)).max(1),
        );
    }
    Tick::new(uses_counter, 1000)
}

/// Converts a duration to ticks. The longest possible duration is longer than any uptime.
pub(crate) fn to_ticks(duration: Duration) -> u64 {
    (nanos(duration) / 100).saturating_mul(tick().per_micro) / 10
}

/// Converts ticks to a duration.
pub(crate) fn from_ticks(ticks: u64) -> Duration {
    Duration::from_nanos((u128::from(ticks) * 1000 / u128::from(tick().per_micro)) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_duration_exceeds_any_uptime() {
        let quarter_century = Duration::from_secs(100 * 365 * 86_400) / 4;
        assert!(to_ticks(Duration::MAX) >= to_ticks(quarter_century));
        assert!(ticks().checked_add(to_ticks(Duration::MAX)).is_some());
    }

    #[test]
    fn ticks_and_nanoseconds_agree_within_a_hundredth() {
        let ratio = |_| {
            let (ticks_before, before) = (ticks(), now());
            std::thread::sleep(Duration::from_millis(20));
            let (ticks_after, after) = (ticks(), now());
            let measured = from_ticks(ticks_after - ticks_before).as_nanos() as f64;
            measured / (after - before) as f64
        };
        // The thread may lose the CPU between the readings of the two clocks, but not every time.
        let ratios: Vec<f64> = (0..10).map(ratio).collect();
        let agree = ratios.iter().any(|ratio| (0.99..1.01).contains(ratio));
        assert!(agree, "ratios of the ticks to the clock: {ratios:?}");
    }

    #[test]
    fn the_start_of_a_timer_is_never_early_and_hardly_late() {
        for n in 0..200_000_u64 {
            // Waits for different times, so that some readings are fresh and others too old.
            for _ in 0..n % 64 {
                core::hint::spin_loop();
            }
            let before = now();
            let start = now_or_later();
            let after = now();
            assert!(start >= before, "{} ns early", before - start);
            let lateness_ns = start.saturating_sub(after);
            assert!(lateness_ns <= 2 * MARGIN, "{lateness_ns} ns late");
        }
    }

    #[test]
    fn instants_survive_the_round_trip_and_keep_their_distances() {
        let first = Instant::now();
        for n in 0..1000u32 {
            let instant = first + n * Duration::from_micros(20);
            assert_eq!(to_instant(from_instant(instant)), instant);
            let distance = from_instant(instant) - from_instant(first);
            assert_eq!(distance, u64::from(n) * 20_000);
        }
    }
}
