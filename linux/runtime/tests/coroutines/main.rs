//! Tests of the coroutines of a runtime: order, names, levels, vCPUs, panics, shutdown.

mod ends;
mod floor;
mod order;
mod vcpus;

use std::time::{Duration, Instant};

use upshift::{Level, Runtime};

fn runtime_with_one_vcpu() -> Runtime {
    Runtime::builder().vcpus(1).build().unwrap()
}

fn runtime_with_two_vcpus() -> Runtime {
    Runtime::builder().vcpus(2).build().unwrap()
}

fn burn(time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}

const URGENT: Level = Level::at::<2>();
const MIDDLE: Level = Level::at::<20>();
const LESS_URGENT: Level = Level::at::<50>();

#[upshift::test(vcpus = 2, level = 7)]
async fn the_test_attribute_builds_a_runtime() {
    assert_eq!(upshift::current_level(), Some(Level::at::<7>()));
}
