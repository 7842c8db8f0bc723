//! Records the times of operations and the CPU time, and prints the line that reports them.

use std::time::{Duration, Instant};

/// Times of operations, in ns.
#[derive(Default)]
pub struct Times(Vec<u32>);

impl Times {
    /// Records an operation that began at this time and ends now.
    pub fn record_since(&mut self, began: Instant) {
        let ns = began.elapsed().as_nanos();
        self.0.push(u32::try_from(ns).unwrap_or(u32::MAX));
    }

    /// Adds the times of another recorder.
    pub fn add(&mut self, other: Times) {
        self.0.extend(other.0);
    }
}

/// Returns the CPU time of the process: user, kernel.
fn cpu_time() -> [Duration; 2] {
    // SAFETY: an `rusage` consists of numbers, for which zeros are valid. The pointer is valid,
    // because the call only writes to this local.
    let cpu_time = unsafe {
        let mut cpu_time: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut cpu_time);
        cpu_time
    };
    [cpu_time.ru_utime, cpu_time.ru_stime].map(|time| {
        Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64)
    })
}

/// A running measurement.
pub struct Report {
    began: Instant,
    /// CPU time of the process at the start: user, kernel.
    cpu_time: [Duration; 2],
}

impl Report {
    /// Starts the measurement.
    #[must_use]
    pub fn start() -> Report {
        Report {
            began: Instant::now(),
            cpu_time: cpu_time(),
        }
    }

    /// Returns the start of the measurement.
    #[must_use]
    pub fn began(&self) -> Instant {
        self.began
    }

    /// Ends the measurement, prints the line of JSON, and ends the process.
    pub fn print_and_exit(self, times: Times, sum: u64) -> ! {
        let seconds = self.began.elapsed().as_secs_f64();
        let [user, sys] = cpu_time();
        let mut times = times.0;
        times.sort_unstable();
        let percentile_us = |quantile: f64| {
            let index = (times.len() as f64 * quantile) as usize;
            let ns = times.get(index.min(times.len().saturating_sub(1)));
            ns.map_or(0.0, |&ns| f64::from(ns) / 1e3)
        };
        println!(
            "{{\"ops\":{},\"seconds\":{seconds:.6},\"p50\":{:.2},\"p99\":{:.2},\"p999\":{:.2},\"user\":{:.6},\"sys\":{:.6},\"sum\":{sum}}}",
            times.len(),
            percentile_us(0.5),
            percentile_us(0.99),
            percentile_us(0.999),
            (user - self.cpu_time[0]).as_secs_f64(),
            (sys - self.cpu_time[1]).as_secs_f64(),
        );
        std::process::exit(0);
    }
}
