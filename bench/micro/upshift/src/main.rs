//! Microbenchmarks of Upshift: those that all compared runtimes have, and two that only Upshift
//! has: `reprio` (a queued coroutine changes its level) and `need_preempt`.

mod workers;

use std::future::Future;
use std::hint::black_box;
use std::time::Duration;

use bench_kit::micro::{Host, Part, Samples, one_thread, parse_part, two_threads};
use bench_kit::workers::parse_two_workers;
use upshift::sync::mpsc;
use upshift::{JoinHandle, Level, Priority, Runtime};

const PEER: &str = "upshift";

struct Upshift;

impl Host for Upshift {
    type Handle = JoinHandle<()>;

    fn spawn<F: Future<Output = ()> + Send + 'static>(future: F) -> Self::Handle {
        upshift::spawn(future, Priority::Inherit)
    }

    async fn join(handle: Self::Handle) {
        let _ = handle.await;
    }

    fn detach(handle: Self::Handle) {
        handle.detach();
    }

    fn sleep(time: Duration) -> impl Future<Output = ()> {
        upshift::time::sleep(time)
    }

    async fn ping_pong(rounds: usize) {
        let (ping_sender, mut ping_receiver) = mpsc::channel(1);
        let (pong_sender, mut pong_receiver) = mpsc::channel(1);
        let first_task = Self::spawn(async move {
            for _ in 0..rounds {
                let _ = ping_sender.send(()).await;
                pong_receiver.recv().await;
            }
        });
        let second_task = Self::spawn(async move {
            while ping_receiver.recv().await.is_some() {
                let _ = pong_sender.send(()).await;
            }
        });
        let _ = (first_task.await, second_task.await);
    }
}

/// Moves each of a thousand queued coroutines from level to level.
async fn reprio() {
    const COROUTINES: usize = 1000;
    let handles: Vec<_> = (0..COROUTINES).map(|_| Upshift::spawn(async {})).collect();
    let mut samples = Samples::new(PEER, "reprio", 100 * COROUTINES);
    while samples.next() {
        for round in 0..100 {
            for (index, handle) in handles.iter().enumerate() {
                let level = Level::new(((index + round) % 64) as u8).expect("below 64");
                let _ = upshift::reprio(handle.id(), level);
            }
        }
    }
    for handle in handles {
        Upshift::join(handle).await;
    }
}

async fn need_preempt() {
    const CALLS: usize = 10_000_000;
    let mut samples = Samples::new(PEER, "need-preempt", CALLS);
    while samples.next() {
        for _ in 0..CALLS {
            black_box(upshift::need_preempt());
        }
    }
}

fn build() -> Runtime {
    let runtime = Runtime::builder().vcpus(1).build();
    runtime.expect("a runtime can be built")
}

fn main() {
    if let Some((part, variant)) = parse_two_workers() {
        workers::run(part, &variant);
        std::process::exit(0);
    }
    let (part, _) = parse_part(&[PEER]);
    match part {
        Part::OneThread => build().block_on(async {
            reprio().await;
            need_preempt().await;
            one_thread::<Upshift>(PEER).await;
        }),
        Part::TwoThreads => two_threads(PEER, |future| build().block_on(future)),
    }
    // Exits at once, so that the million idle coroutines of a benchmark are not freed one by one.
    std::process::exit(0);
}
