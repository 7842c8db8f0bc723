//! Microbenchmarks of monoio, with its default settings. There is no tuned variant, because ring
//! flags would affect only the wake across threads.

use std::future::Future;
use std::time::Duration;

use bench_kit::micro::{Host, Part, one_thread, parse_part, two_threads};
use local_sync::mpsc::bounded;
use monoio::task::JoinHandle;
use monoio::{IoUringDriver, RuntimeBuilder};

struct Monoio;

impl Host for Monoio {
    type Handle = JoinHandle<()>;

    fn spawn<F: Future<Output = ()> + Send + 'static>(future: F) -> Self::Handle {
        monoio::spawn(future)
    }

    async fn join(handle: Self::Handle) {
        handle.await;
    }

    fn detach(handle: Self::Handle) {
        drop(handle);
    }

    fn sleep(time: Duration) -> impl Future<Output = ()> {
        monoio::time::sleep(time)
    }

    async fn ping_pong(rounds: usize) {
        let (ping_sender, mut ping_receiver) = bounded::channel(1);
        let (pong_sender, mut pong_receiver) = bounded::channel(1);
        let first_task = monoio::spawn(async move {
            for _ in 0..rounds {
                let _ = ping_sender.send(()).await;
                pong_receiver.recv().await;
            }
        });
        let second_task = monoio::spawn(async move {
            while ping_receiver.recv().await.is_some() {
                let _ = pong_sender.send(()).await;
            }
        });
        first_task.await;
        second_task.await;
    }
}

fn main() {
    let peer = "monoio";
    match parse_part(&["default"]).0 {
        Part::OneThread => block_on(one_thread::<Monoio>(peer)),
        Part::TwoThreads => two_threads(peer, block_on),
    }
    // A million idle tasks need not be freed.
    std::process::exit(0);
}

fn block_on(future: impl Future<Output = ()>) {
    let runtime = RuntimeBuilder::<IoUringDriver>::new()
        .enable_timer()
        .build();
    runtime.expect("a runtime can be built").block_on(future);
}
