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
        let (to, mut from_us) = bounded::channel(1);
        let (back, mut from_them) = bounded::channel(1);
        let us = monoio::spawn(async move {
            for _ in 0..rounds {
                let _ = to.send(()).await;
                from_them.recv().await;
            }
        });
        let them = monoio::spawn(async move {
            while from_us.recv().await.is_some() {
                let _ = back.send(()).await;
            }
        });
        us.await;
        them.await;
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
    let built = RuntimeBuilder::<IoUringDriver>::new()
        .enable_timer()
        .build();
    built.expect("a runtime can be built").block_on(future);
}
