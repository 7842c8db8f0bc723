//! Burns a given amount of CPU time in a loop whose number of iterations is calibrated once.
//!
//! An iteration is a step of a shift-register generator (Marsaglia 2003): six operations in
//! registers, each of which depends on the previous one. The loop touches no memory, makes no
//! system call and reads no clock, so a thread that is suspended in the middle of a burn has the
//! same work left when it resumes. A burn is therefore an amount of work, equal for all servers;
//! its CPU time varies with the frequency of the CPU and with the load of its core.
//! [`Burner::error`] returns the difference at calibration: a few tenths of a per cent on a quiet
//! machine. Single burns on a virtual machine are up to 5 % off, because of interrupts.

use crate::Spread;
use crate::os;
use std::hint::black_box;
use std::time::Duration;

/// Iterations of a calibration sample: about half a millisecond.
const ITERATIONS_PER_SAMPLE: u64 = 300_000;
/// Number of samples, of which the median is taken.
const SAMPLES: usize = 15;
/// CPU time burnt to check the result, in ns.
const CHECK_NS: u64 = 1_000_000;

/// Burns CPU time in units of ns. Calibrated on the machine on which it runs; copies are free.
#[derive(Clone, Copy, Debug)]
pub struct Burner {
    iterations_per_ns: f64,
    error: f64,
}

impl Burner {
    /// Measures the number of iterations per ns, then checks the result against the CPU clock of
    /// the calling thread.
    ///
    /// Takes about 10 ms of CPU time. Calibrate on the kind of CPU that will burn.
    pub fn calibrate() -> Burner {
        let median = |samples: usize, iterations| {
            let figures = (0..samples).map(|_| measure(iterations));
            Spread::of(figures).map_or(1.0, |spread| spread.median)
        };
        let ns_of_sample = median(SAMPLES, ITERATIONS_PER_SAMPLE);
        let mut burner = Burner {
            iterations_per_ns: ITERATIONS_PER_SAMPLE as f64 / ns_of_sample,
            error: 0.0,
        };
        let iterations = burner.iterations(CHECK_NS);
        let check = median(5, iterations);
        burner.error = check / CHECK_NS as f64 - 1.0;
        burner
    }

    /// Burns `ns` ns of CPU time of the calling thread.
    ///
    /// The resolution is one iteration, one to two ns. The time is not bounded here; the caller
    /// bounds external values.
    pub fn burn(&self, ns: u64) {
        spin(self.iterations(ns));
    }

    /// Returns the relative error of a burn against the thread's CPU clock at calibration: 0.01 is
    /// 1 % too much.
    pub fn error(&self) -> f64 {
        self.error
    }

    fn iterations(&self, ns: u64) -> u64 {
        (ns as f64 * self.iterations_per_ns) as u64
    }
}

/// Returns the CPU time of `iterations` iterations, in ns.
fn measure(iterations: u64) -> f64 {
    let before = os::thread_clock();
    spin(iterations);
    let used: Duration = os::thread_clock().saturating_sub(before);
    // A clock that stands still would make all burns endless.
    (used.as_nanos() as f64).max(1.0)
}

/// Runs the iterations, which no compiler can shorten. Not inlined, so that the calibrated loop is
/// the very loop that burns.
#[inline(never)]
fn spin(iterations: u64) {
    let mut x = black_box(iterations | 1);
    for _ in 0..iterations {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
    }
    black_box(x);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burn_costs_cpu_time_in_proportion() {
        let burner = Burner::calibrate();
        assert!(burner.iterations(1000) > 1);
        assert!(burner.error().is_finite());
        let [short, long] = [100_000, 2_000_000].map(|ns| {
            let best = (0..5).map(|_| measure(burner.iterations(ns)));
            best.fold(f64::INFINITY, f64::min)
        });
        // The long burn takes 20 times the CPU time of the short one; the rest of the bound is a
        // margin for interrupts and a changing frequency.
        assert!(
            long > 5.0 * short,
            "the short burn took {short} ns, the long one {long} ns"
        );
    }

    #[test]
    fn a_burn_of_zero_costs_nothing() {
        Burner::calibrate().burn(0);
    }
}
