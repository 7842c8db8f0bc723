//! Measures the cost of a thread switch, of a timer and of a *look* on this machine, and derives
//! the shortest sensible quantum (time slice).
//!
//! A *dispatcher* is a thread with a higher priority than the running thread. A timer wakes the
//! dispatcher, which briefly interrupts the running thread. This interruption is called a *look*.
//!
//! Two threads are pinned to one CPU and put into SCHED_FIFO: a *measurer*, and a *partner* that
//! the measurer switches to. Every loop is bounded by a count, and by a deadline
//! [`LONGEST_CALIBRATION`] after the start. Both threads end afterwards, so no thread is left
//! elevated. After each 20 ms of measurement, both threads sleep for 5 ms, so that ordinary threads
//! get this CPU.

mod bench;
mod partner;

use std::error::Error;
use std::fmt;
use std::io;
use std::time::{Duration, Instant};

use bench::SampleCounts;

use crate::elevator::Elevator;
use crate::error::ElevateError;
use crate::priority::{Bands, Priority};
use crate::rights::{MissingRights, Rights};
use crate::sys::{Kernel, Sys};

/// Maximum duration of a calibration.
pub const LONGEST_CALIBRATION: Duration = Duration::from_millis(800);

/// Delays of the measured timers, in microseconds.
pub const DELAYS_US: [u64; 6] = [5, 10, 20, 50, 100, 200];

/// Lower bound of [`Calibration::min_quantum`], in microseconds.
const MIN_QUANTUM_US: u64 = 5;
/// Upper bound of [`Calibration::min_quantum`], in microseconds.
const MAX_QUANTUM_US: u64 = 4000;

/// Median and 99th percentile of one quantity, in ns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Quantiles {
    /// Half of the samples took no longer.
    pub p50_ns: u64,
    /// 99 of 100 samples took no longer.
    pub p99_ns: u64,
    /// Number of samples.
    pub samples: usize,
}

impl Quantiles {
    fn of(samples: &mut [u64]) -> Quantiles {
        samples.sort_unstable();
        let percentile = |percent: usize| {
            samples.get((samples.len() * percent / 100).min(samples.len().saturating_sub(1)))
        };
        Quantiles {
            p50_ns: percentile(50).copied().unwrap_or(0),
            p99_ns: percentile(99).copied().unwrap_or(0),
            samples: samples.len(),
        }
    }
}

/// Measurements of one-shot timers with the same delay, while a less urgent thread keeps the CPU
/// busy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimerFloor {
    /// The requested delay, ns.
    pub requested_ns: u64,
    /// Cost of arming the timer.
    pub arming: Quantiles,
    /// Time between the requested expiry and the waiting thread's next instruction.
    pub lateness: Quantiles,
}

/// The result of [`Calibration::measure`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Calibration {
    /// The measured CPU.
    pub cpu: usize,
    /// Time from the call that elevates the partner until the measurer runs again, after the
    /// partner has run and demoted itself. This takes two calls and two switches.
    pub switch: Quantiles,
    /// Time of a change of priority without a switch.
    pub change: Quantiles,
    /// Time of a hand-over on one CPU: a thread wakes the other by futex and then sleeps itself.
    pub hand_over: Quantiles,
    /// Measurements of timers, by delay.
    pub timers: Vec<TimerFloor>,
    /// Time that a dispatcher's look takes from the thread that it interrupts, if that thread
    /// continues afterwards; see [`look_cost`](Calibration::look_cost).
    pub look: Duration,
    /// Duration of the calibration.
    pub took: Duration,
}

impl Calibration {
    /// Measures on `cpu`, or on the first CPU this thread may use, for about 200 ms.
    ///
    /// # Errors
    /// [`CalibrateError`], for a missing right (with its remedy), for a CPU that this thread may
    /// not use, or for an exhausted resource.
    pub fn measure(cpu: Option<usize>) -> Result<Calibration, CalibrateError> {
        Calibration::measure_with(cpu, SampleCounts::FULL)
    }

    /// Measures on the first CPU this thread may use, for about 20 ms. This is long enough for
    /// medians and the values derived from them, but not for the 99th percentiles.
    ///
    /// # Errors
    /// Those of [`Calibration::measure`].
    pub fn measure_briefly() -> Result<Calibration, CalibrateError> {
        Calibration::measure_with(None, SampleCounts::BRIEF)
    }

    fn measure_with(
        cpu: Option<usize>,
        samples: SampleCounts,
    ) -> Result<Calibration, CalibrateError> {
        let began = Instant::now();
        let allowed = Kernel.sched_getaffinity(0)?;
        let cpu = match cpu {
            Some(cpu) if allowed.contains(cpu) => cpu,
            Some(cpu) => {
                return Err(CalibrateError::NoSuchCpu {
                    cpu,
                    allowed: allowed.iter().collect(),
                });
            }
            None => allowed.iter().next().unwrap_or(0),
        };
        let bands = bands(&Rights::probe())?;
        let elevator = Elevator::new()?;
        let mut result = bench::run(&elevator, bands, cpu, samples, began + LONGEST_CALIBRATION)?;
        result.took = began.elapsed();
        Ok(result)
    }

    /// Returns the time that a dispatcher's look takes from the running thread. The time includes
    /// the interrupt, arming a timer, and two switches.
    pub fn look_cost(&self) -> Duration {
        self.look
    }

    /// Returns the median lateness of a timer with a delay of `requested`.
    pub fn lateness(&self, requested: Duration) -> Duration {
        Duration::from_nanos(self.interpolate(requested, |timer| timer.lateness.p50_ns))
    }

    /// Returns the smallest sensible quantum, which is the smallest for which, in the median,
    ///
    /// 1. a slice is at most twice as long as requested (*lateness ≤ quantum*), because with a
    ///    shorter quantum, lateness rather than the quantum determines the length of a slice; and
    /// 2. at most a third of the CPU time goes into looks (*2 × look ≤ quantum + lateness*, because
    ///    a slice actually lasts for quantum and lateness). With a shorter quantum, under an
    ///    overload of long polls, preemption costs more than it gains. A third is a bound, not a
    ///    recommendation. The time is spent only while long polls are being interrupted.
    ///
    /// The result is in whole µs, at least 5 µs and at most 4 ms. Delays between two measured
    /// delays are interpolated.
    pub fn min_quantum(&self) -> Duration {
        let is_sensible = |quantum: &Duration| {
            let lateness = self.lateness(*quantum);
            lateness <= *quantum && self.look * 2 <= *quantum + lateness
        };
        (MIN_QUANTUM_US..MAX_QUANTUM_US)
            .map(Duration::from_micros)
            .find(is_sensible)
            .unwrap_or(Duration::from_micros(MAX_QUANTUM_US))
    }

    /// Returns `quantity` for a delay of `requested`, interpolated linearly between the two
    /// measured delays around it.
    fn interpolate(&self, requested: Duration, quantity: impl Fn(&TimerFloor) -> u64) -> u64 {
        let requested = nanos(requested);
        let above = self
            .timers
            .partition_point(|timer| timer.requested_ns < requested);
        match (
            above.checked_sub(1).map(|below| &self.timers[below]),
            self.timers.get(above),
        ) {
            (None, None) => 0,
            (Some(timer), None) | (None, Some(timer)) => quantity(timer),
            (Some(low), Some(high)) => {
                let part = (requested - low.requested_ns) as f64
                    / (high.requested_ns - low.requested_ns) as f64;
                let (from, to) = (quantity(low) as f64, quantity(high) as f64);
                (from + (to - from) * part) as u64
            }
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns three priorities that this process may use.
fn bands(rights: &Rights) -> Result<Bands, CalibrateError> {
    let default = Bands::DEFAULT;
    if rights.highest >= Some(default.dispatcher()) {
        return Ok(default);
    }
    let lowest = Bands::new(
        Priority::of::<1>(),
        Priority::of::<2>(),
        Priority::of::<3>(),
    );
    rights.require(Priority::of::<3>())?;
    Ok(lowest.unwrap_or(default))
}

/// The reason why a calibration failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum CalibrateError {
    /// SCHED_FIFO is not permitted.
    Rights(MissingRights),
    /// The CPU does not exist or this thread may not run there.
    NoSuchCpu {
        /// The requested CPU.
        cpu: usize,
        /// The CPUs that this thread may use.
        allowed: Vec<usize>,
    },
    /// A thread could not be elevated, although the check of the rights had passed.
    Elevate(ElevateError),
    /// Threads, timers or memory are exhausted.
    Os(io::Error),
    /// The machine was too busy, because other real-time threads held the CPU or because real-time
    /// throttling stopped the calibration.
    TooBusy,
}

impl fmt::Display for CalibrateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CalibrateError::Rights(error) => error.fmt(f),
            CalibrateError::NoSuchCpu { cpu, allowed } => {
                write!(f, "CPU {cpu} is not available here: choose one of {allowed:?}")
            }
            CalibrateError::Elevate(error) => error.fmt(f),
            CalibrateError::Os(error) => write!(f, "cannot calibrate: {error}"),
            CalibrateError::TooBusy => f.write_str(
                "too few samples in the time allowed: other real-time threads hold this CPU, or real-time throttling stopped the calibration; \
                 try again, or another CPU",
            ),
        }
    }
}

impl Error for CalibrateError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            CalibrateError::Rights(error) => Some(error),
            CalibrateError::Elevate(error) => Some(error),
            CalibrateError::Os(error) => Some(error),
            _ => None,
        }
    }
}

impl From<MissingRights> for CalibrateError {
    fn from(error: MissingRights) -> CalibrateError {
        CalibrateError::Rights(error)
    }
}

impl From<ElevateError> for CalibrateError {
    fn from(error: ElevateError) -> CalibrateError {
        CalibrateError::Elevate(error)
    }
}

impl From<io::Error> for CalibrateError {
    fn from(error: io::Error) -> CalibrateError {
        CalibrateError::Os(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calibration(look_us: u64, timers: &[(u64, u64)]) -> Calibration {
        let us = |us: u64| Quantiles {
            p50_ns: us * 1000,
            p99_ns: us * 2000,
            samples: 100,
        };
        let timer = |&(requested, lateness): &(u64, u64)| TimerFloor {
            requested_ns: requested * 1000,
            arming: us(1),
            lateness: us(lateness),
        };
        Calibration {
            cpu: 0,
            switch: us(2),
            change: us(1),
            hand_over: us(1),
            timers: timers.iter().map(timer).collect(),
            look: Duration::from_micros(look_us),
            took: Duration::ZERO,
        }
    }

    #[test]
    fn a_late_timer_raises_the_min_quantum_to_its_lateness() {
        let min = calibration(2, &[(5, 40), (200, 40)]).min_quantum();
        assert_eq!(min, Duration::from_micros(40));
    }

    #[test]
    fn an_expensive_look_raises_the_min_quantum_until_looks_take_a_third_of_the_cpu() {
        // Two looks of 50 µs equal a quantum of 70 µs and a lateness of 30 µs.
        let min = calibration(50, &[(5, 30), (200, 30)]).min_quantum();
        assert_eq!(min, Duration::from_micros(70));
    }

    #[test]
    fn values_between_two_delays_are_interpolated() {
        let calibration = calibration(0, &[(10, 4), (20, 8)]);
        let lateness_us = |us| calibration.lateness(Duration::from_micros(us)).as_micros();
        assert_eq!([1, 10, 15, 20, 99].map(lateness_us), [4, 4, 6, 8, 8]);
    }

    #[test]
    fn the_min_quantum_is_bounded_on_both_sides() {
        let lowest = Duration::from_micros(5);
        assert_eq!(calibration(0, &[(5, 0)]).min_quantum(), lowest);
        assert_eq!(calibration(0, &[]).min_quantum(), lowest);
        let highest = calibration(100_000, &[(5, 0)]).min_quantum();
        assert_eq!(highest, Duration::from_millis(4));
    }

    #[test]
    fn quantiles_of_few_samples_are_samples() {
        assert_eq!(Quantiles::of(&mut []), Quantiles::default());
        let quantiles = Quantiles::of(&mut [7]);
        assert_eq!(
            (quantiles.p50_ns, quantiles.p99_ns, quantiles.samples),
            (7, 7, 1)
        );
        let mut samples: Vec<u64> = (0..100).rev().collect();
        let quantiles = Quantiles::of(&mut samples);
        assert_eq!((quantiles.p50_ns, quantiles.p99_ns), (50, 99));
    }
}
