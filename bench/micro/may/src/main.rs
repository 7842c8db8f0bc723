//! Microbenchmarks of may, which has stackful coroutines. They run on one worker, or on two in the
//! part `two-threads`, where the scheduler chooses the worker of both ends of a channel. may has no
//! timer that can be cancelled. Memory is measured with 20,000 coroutines, because each maps a
//! stack and the kernel limits the number of mappings.

use bench_kit::micro::{Part, Samples, parse_part, print_figure, resident_bytes};
use may::coroutine::yield_now;
use may::go;
use may::sync::mpsc::{Receiver, Sender, channel};

const PEER: &str = "may";
const IDLE: usize = 20_000;

fn main() {
    let part = parse_part(&["default"]).0;
    let workers = if part == Part::OneThread { 1 } else { 2 };
    may::config().set_workers(workers).set_stack_size(0x1000);
    let measuring = go!(move || match part {
        Part::OneThread => one_worker(),
        Part::TwoThreads => hops("channel-hop-2-workers", 100_000),
    });
    measuring.join().expect("the benchmarks do not panic");
    std::process::exit(0);
}

fn one_worker() {
    let mut samples = Samples::new(PEER, "spawn-join", 20_000);
    while samples.next() {
        for _ in 0..20_000 {
            let _ = go!(|| {}).join();
        }
    }
    let mut handles = Vec::with_capacity(1000);
    let mut samples = Samples::new(PEER, "spawn-join-1000", 20_000);
    while samples.next() {
        for _ in 0..20 {
            handles.extend((0..1000).map(|_| go!(|| {})));
            for handle in handles.drain(..) {
                let _ = handle.join();
            }
        }
    }
    for (name, tasks, turns) in [("yield-2", 2, 200_000), ("yield-1000", 1000, 500)] {
        let mut samples = Samples::new(PEER, name, tasks * turns);
        while samples.next() {
            handles.extend((0..tasks).map(|_| {
                go!(move || {
                    for _ in 0..turns {
                        yield_now();
                    }
                })
            }));
            for handle in handles.drain(..) {
                let _ = handle.join();
            }
        }
    }
    hops("channel-hop", 100_000);
    let before = resident_bytes();
    let mut senders = Vec::with_capacity(IDLE);
    for _ in 0..IDLE {
        let (sender, receiver) = channel::<()>();
        senders.push(sender);
        go!(move || receiver.recv());
    }
    yield_now();
    let used = resident_bytes().saturating_sub(before);
    print_figure("bytes-per-task", PEER, &mut [used as f64 / IDLE as f64]);
}

fn hops(name: &str, rounds: usize) {
    let mut samples = Samples::new(PEER, name, 2 * rounds);
    while samples.next() {
        let (to, from_us): (Sender<()>, Receiver<()>) = channel();
        let (back, from_them): (Sender<()>, Receiver<()>) = channel();
        let us = go!(move || {
            for _ in 0..rounds {
                let _ = to.send(());
                let _ = from_them.recv();
            }
        });
        let them = go!(move || {
            while from_us.recv().is_ok() {
                let _ = back.send(());
            }
        });
        let _ = (us.join(), them.join());
    }
}
