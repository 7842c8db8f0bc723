//! Microbenchmarks of tokio. Variants: `ct` (current_thread) and `mt` (multi_thread with one
//! worker, where the measuring future is itself a task).

mod workers;

use std::future::Future;
use std::time::Duration;

use bench_kit::micro::{Host, Part, one_thread, parse_part, two_threads};
use bench_kit::workers::parse_two_workers;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

struct Tokio;

impl Host for Tokio {
    type Handle = JoinHandle<()>;

    fn spawn<F: Future<Output = ()> + Send + 'static>(future: F) -> Self::Handle {
        tokio::spawn(future)
    }

    async fn join(handle: Self::Handle) {
        let _ = handle.await;
    }

    fn detach(handle: Self::Handle) {
        drop(handle);
    }

    fn sleep(time: Duration) -> impl Future<Output = ()> {
        tokio::time::sleep(time)
    }

    async fn ping_pong(rounds: usize) {
        let (ping_sender, mut ping_receiver) = mpsc::channel(1);
        let (pong_sender, mut pong_receiver) = mpsc::channel(1);
        let first_task = tokio::spawn(async move {
            for _ in 0..rounds {
                let _ = ping_sender.send(()).await;
                pong_receiver.recv().await;
            }
        });
        let second_task = tokio::spawn(async move {
            while ping_receiver.recv().await.is_some() {
                let _ = pong_sender.send(()).await;
            }
        });
        let _ = (first_task.await, second_task.await);
    }
}

fn main() {
    if let Some((part, _)) = parse_two_workers() {
        workers::run(part);
        std::process::exit(0);
    }
    let (part, variant) = parse_part(&["ct", "mt"]);
    let is_multi = variant == "mt";
    let peer = if is_multi { "tokio-mt" } else { "tokio-ct" };
    match part {
        Part::OneThread if is_multi => {
            let runtime = build(is_multi);
            let result =
                runtime.block_on(async { tokio::spawn(one_thread::<Tokio>("tokio-mt")).await });
            result.expect("the benchmarks do not panic");
        }
        Part::OneThread => build(is_multi).block_on(one_thread::<Tokio>(peer)),
        Part::TwoThreads => two_threads(peer, |future| {
            let runtime = build(is_multi);
            if is_multi {
                let result = runtime.block_on(async { tokio::spawn(future).await });
                result.expect("the benchmarks do not panic");
            } else {
                runtime.block_on(future);
            }
        }),
    }
    // A million idle tasks need not be freed.
    std::process::exit(0);
}

fn build(is_multi: bool) -> Runtime {
    let mut builder = if is_multi {
        Builder::new_multi_thread()
    } else {
        Builder::new_current_thread()
    };
    let runtime = builder.worker_threads(1).enable_all().build();
    runtime.expect("a runtime can be built")
}
