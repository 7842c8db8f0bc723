//! Shows what the harts and levels did in the last second.

use os_user::status::{HartStatus, harts, processes};
use os_user::{Error, println, sleep};

/// Duration of a measurement, in microseconds.
const PERIOD_MICROS: u64 = 1_000_000;
/// Width of a bar that stands for the whole time, in characters.
const BAR_WIDTH: u64 = 40;

/// Time of all harts, in ticks.
struct Totals {
    ticks: u64,
    of_level: [u64; HartStatus::LEVELS],
}

/// Waits for a second, and prints the times of that second.
pub(crate) async fn show() -> Result<(), Error> {
    let before = harts()?;
    sleep(PERIOD_MICROS).await;
    let after = harts()?;
    let programs = processes()?;
    let mut sum = Totals {
        ticks: 0,
        of_level: [0; HartStatus::LEVELS],
    };
    println!("hart programs   kernel     idle  runs");
    for (index, (before, after)) in before.iter().zip(&after).enumerate() {
        let elapsed = after.now.saturating_sub(before.now);
        let mut used = 0;
        for (level, total) in sum.of_level.iter_mut().enumerate() {
            let ticks = after.ticks[level].saturating_sub(before.ticks[level]);
            *total += ticks;
            used += ticks;
        }
        sum.ticks += elapsed;
        let idle = HartStatus::IDLE;
        let idle = after.ticks[idle].saturating_sub(before.ticks[idle]);
        let runs = programs
            .iter()
            .find(|process| process.number == after.process);
        println!(
            "{index:>4} {} {} {}  {}",
            Percent(used - idle, elapsed),
            Percent(elapsed.saturating_sub(used), elapsed),
            Percent(idle, elapsed),
            runs.map_or("nothing", |process| process.name()),
        );
    }
    println!("level    time of all harts");
    let levels = sum.of_level[..HartStatus::IDLE].iter().enumerate();
    for (level, ticks) in levels.filter(|(_, ticks)| **ticks > 0) {
        let bar = (ticks * BAR_WIDTH).div_ceil(sum.ticks.max(1)) as usize;
        println!("{level:>5} {} {:#<bar$}", Percent(*ticks, sum.ticks), "");
    }
    Ok(())
}

struct Percent(u64, u64);

impl core::fmt::Display for Percent {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let tenths = self.0 * 1_000 / self.1.max(1);
        write!(f, "{:>4}.{} %", tenths / 10, tenths % 10)
    }
}
