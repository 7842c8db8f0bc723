//! The time of harts and levels in the last second.

use os_user::status::{HartStatus, harts, processes};
use os_user::{Error, println, sleep};

/// Measured time, in microseconds.
const PERIOD: u64 = 1_000_000;
/// Characters of a bar that stands for all time.
const BAR: u64 = 40;

/// Time of all harts.
struct Sum {
    ticks: u64,
    of_level: [u64; HartStatus::LEVELS],
}

/// Waits for a second, and prints its times.
pub(crate) async fn show() -> Result<(), Error> {
    let before = harts()?;
    sleep(PERIOD).await;
    let after = harts()?;
    let names = processes()?;
    let mut sum = Sum {
        ticks: 0,
        of_level: [0; HartStatus::LEVELS],
    };
    println!("hart programs   kernel     idle  runs");
    for (index, (before, after)) in before.iter().zip(&after).enumerate() {
        let all = after.now.saturating_sub(before.now);
        let mut used = 0;
        for (level, total) in sum.of_level.iter_mut().enumerate() {
            let ticks = after.ticks[level].saturating_sub(before.ticks[level]);
            *total += ticks;
            used += ticks;
        }
        sum.ticks += all;
        let idle = HartStatus::IDLE;
        let idle = after.ticks[idle].saturating_sub(before.ticks[idle]);
        let runs = names.iter().find(|one| one.number == after.process);
        println!(
            "{index:>4} {} {} {}  {}",
            Percent(used - idle, all),
            Percent(all.saturating_sub(used), all),
            Percent(idle, all),
            runs.map_or("nothing", |one| one.name()),
        );
    }
    println!("level    time of all harts");
    let levels = sum.of_level[..HartStatus::IDLE].iter().enumerate();
    for (level, ticks) in levels.filter(|(_, ticks)| **ticks > 0) {
        let bar = (ticks * BAR).div_ceil(sum.ticks.max(1)) as usize;
        println!("{level:>5} {} {:#<bar$}", Percent(*ticks, sum.ticks), "");
    }
    Ok(())
}

/// A part of a whole, in eight characters.
struct Percent(u64, u64);

impl core::fmt::Display for Percent {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let tenths = self.0 * 1_000 / self.1.max(1);
        write!(f, "{:>4}.{} %", tenths / 10, tenths % 10)
    }
}
