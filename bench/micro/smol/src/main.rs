//! Microbenchmarks of smol, that is, of async-executor and async-io. The measuring future is a task
//! itself and runs inside `executor.run(…)`, as in a server.

mod workers;

use std::future::Future;
use std::time::Duration;

use async_executor::{Executor, Task};
use async_io::{Timer, block_on};
use bench_kit::micro::{Host, Part, one_thread, parse_part, two_threads};
use bench_kit::workers::parse_two_workers;

static EXECUTOR: Executor<'static> = Executor::new();

struct Smol;

impl Host for Smol {
    type Handle = Task<()>;

    fn spawn<F: Future<Output = ()> + Send + 'static>(future: F) -> Self::Handle {
        EXECUTOR.spawn(future)
    }

    async fn join(handle: Self::Handle) {
        handle.await;
    }

    fn detach(handle: Self::Handle) {
        handle.detach();
    }

    async fn sleep(time: Duration) {
        Timer::after(time).await;
    }

    async fn ping_pong(rounds: usize) {
        let (ping_sender, ping_receiver) = async_channel::bounded(1);
        let (pong_sender, pong_receiver) = async_channel::bounded(1);
        let first_task = EXECUTOR.spawn(async move {
            for _ in 0..rounds {
                let _ = ping_sender.send(()).await;
                let _ = pong_receiver.recv().await;
            }
        });
        let second_task = EXECUTOR.spawn(async move {
            while ping_receiver.recv().await.is_ok() {
                let _ = pong_sender.send(()).await;
            }
        });
        first_task.await;
        second_task.await;
    }
}

fn main() {
    if let Some((part, _)) = parse_two_workers() {
        workers::run(part);
        std::process::exit(0);
    }
    let peer = "smol";
    match parse_part(&["default"]).0 {
        Part::OneThread => block_on(EXECUTOR.run(EXECUTOR.spawn(one_thread::<Smol>(peer)))),
        Part::TwoThreads => two_threads(peer, |future| {
            let executor = Executor::new();
            block_on(executor.run(executor.spawn(future)));
        }),
    }
    // A million idle tasks need not be freed.
    std::process::exit(0);
}
