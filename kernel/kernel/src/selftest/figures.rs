//! Measures the costs of the kernel's operations, on a machine whose time counts instructions:
//! `selftest=figures`. See `user/src/bin/figures.rs`.

use alloc::vec::Vec;

use upshift_core::{Level, Priority};

use crate::arch::finisher;
use crate::executor::yield_now;
use crate::{clock, executor, println};

/// Number of switches of each coroutine in a measurement.
const ROUNDS: u64 = 1000;
/// Number of measurements of each figure.
const REPETITIONS: usize = 5;
/// Number of instructions per tick.
const PER_TICK: u64 = 100;

/// Starts the measurements; the machine ends with them.
pub(super) fn start() {
    let measurements = async {
        for _ in 0..REPETITIONS {
            measure(0, "coroutine to coroutine, kernel").await;
            measure(0, "decision in the kernel, nothing else ready").await;
            measure(62, "decision in the kernel, 62 other levels ready").await;
        }
        finisher::exit(0)
    };
    executor::spawn(measurements, Priority::At(Level::MOST_URGENT))
        .expect("memory to measure")
        .detach();
}

async fn yields() {
    for _ in 0..ROUNDS {
        yield_now().await;
    }
}

/// Measures two coroutines that yield to each other, while a coroutine of each of
/// `less_urgent_levels` less urgent levels is ready.
async fn measure(less_urgent_levels: u8, name: &str) {
    let mut waiting = Vec::new();
    for level in 1..=less_urgent_levels {
        let level = Level::new(level).unwrap_or(Level::LEAST_URGENT);
        waiting.push(executor::spawn(async {}, Priority::At(level)));
    }
    let other = executor::spawn(yields(), Priority::At(Level::MOST_URGENT));
    let start = clock::now();
    yields().await;
    let ticks = clock::now() - start;
    println!("figure: {name}: {}", ticks * PER_TICK / (2 * ROUNDS));
    for handle in waiting.into_iter().chain([other]).flatten() {
        let _ = handle.await;
    }
}
