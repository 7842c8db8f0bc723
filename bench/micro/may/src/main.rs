//! Microbenchmarks of may, which has stackful coroutines. They run on one worker, or on two in the
//! part `two-threads`, where the scheduler chooses the worker of both ends of a channel. may has no
//! timer that can be cancelled. Memory is measured with 20,000 coroutines, because each maps a
//! stack and the kernel limits the number of mappings.

use bench_kit::micro::{Part, Samples, parse_part, print_figure, resident_bytes};
use may::coroutine::yield_now;
use may::go;
use may::sync::mpsc::{Receiver, Sender, channel};

const PEER: &str = "may";
/// Number of idle tasks of the memory figure.
const IDLE_TASKS: usize = 20_000;

fn main() {
    let part = parse_part(&["default"]).0;
    let workers = if part == Part::OneThread { 1 } else { 2 };
    may::config().set_workers(workers).set_stack_size(0x1000);
    let benchmarks = go!(move || match part {
        Part::OneThread => one_worker(),
        Part::TwoThreads => hops("channel-hop-2-workers", 100_000),
    });
    benchmarks.join().expect("the benchmarks do not panic");
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
    for (name, tasks, yields) in [("yield-2", 2, 200_000), ("yield-1000", 1000, 500)] {
        let mut samples = Samples::new(PEER, name, tasks * yields);
        while samples.next() {
            handles.extend((0..tasks).map(|_| {
                go!(move || {
                    for _ in 0..yields {
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
    let bytes_before = resident_bytes();
    let mut senders = Vec::with_capacity(IDLE_TASKS);
    for _ in 0..IDLE_TASKS {
        let (sender, receiver) = channel::<()>();
        senders.push(sender);
        go!(move || receiver.recv());
    }
    yield_now();
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
        let (ping_sender, ping_receiver): (Sender<()>, Receiver<()>) = channel();
        let (pong_sender, pong_receiver): (Sender<()>, Receiver<()>) = channel();
        let first_task = go!(move || {
            for _ in 0..rounds {
                let _ = ping_sender.send(());
                let _ = pong_receiver.recv();
            }
        });
        let second_task = go!(move || {
            while ping_receiver.recv().is_ok() {
                let _ = pong_sender.send(());
            }
        });
        let _ = (first_task.join(), second_task.join());
    }
}
