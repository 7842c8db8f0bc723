//! Microbenchmarks with threads of the standard library, one thread per task.

mod workers;

use std::sync::mpsc::sync_channel;
use std::thread::{spawn, yield_now};

use bench_kit::micro::{Part, Samples, parse_part, print_figure, resident_bytes};
use bench_kit::workers::{TwoWorkers, parse_two_workers};

const PEER: &str = "threads";
/// Number of idle tasks of the memory figure.
const IDLE_TASKS: usize = 2_000;

fn main() {
    if let Some((TwoWorkers::Conserve, _)) = parse_two_workers() {
        return workers::conserve();
    }
    match parse_part(&["default"]).0 {
        Part::OneThread => one_cpu(),
        Part::TwoThreads => hops("cross-wake", 2_000),
    }
    std::process::exit(0);
}

fn one_cpu() {
    let mut samples = Samples::new(PEER, "spawn-join", 2_000);
    while samples.next() {
        for _ in 0..2_000 {
            let _ = spawn(|| {}).join();
        }
    }
    let mut samples = Samples::new(PEER, "spawn-join-1000", 2_000);
    while samples.next() {
        for _ in 0..2 {
            let threads: Vec<_> = (0..1000).map(|_| spawn(|| {})).collect();
            for thread in threads {
                let _ = thread.join();
            }
        }
    }
    let mut samples = Samples::new(PEER, "yield-2", 2 * 50_000);
    while samples.next() {
        let yield_repeatedly = || {
            for _ in 0..50_000 {
                yield_now();
            }
        };
        let threads = [spawn(yield_repeatedly), spawn(yield_repeatedly)];
        let _ = threads.map(|thread| thread.join());
    }
    hops("channel-hop", 20_000);
    // The kernel stack, 16 KiB or more, is not included.
    let bytes_before = resident_bytes();
    for _ in 0..IDLE_TASKS {
        spawn(std::thread::park);
    }
    let bytes = resident_bytes().saturating_sub(bytes_before);
    print_figure(
        "bytes-per-task",
        PEER,
        &mut [bytes as f64 / IDLE_TASKS as f64],
    );
}

fn hops(name: &str, rounds: usize) {
    let mut samples = Samples::new(PEER, name, 2 * rounds);
    while samples.next() {
        let (ping_sender, ping_receiver) = sync_channel(1);
        let (pong_sender, pong_receiver) = sync_channel(1);
        let first_task = spawn(move || {
            for _ in 0..rounds {
                let _ = ping_sender.send(());
                let _ = pong_receiver.recv();
            }
        });
        let second_task = spawn(move || {
            while ping_receiver.recv().is_ok() {
                let _ = pong_sender.send(());
            }
        });
        let _ = (first_task.join(), second_task.join());
    }
}
