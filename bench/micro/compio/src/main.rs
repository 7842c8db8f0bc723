//! Microbenchmarks of compio, with its default settings. There is no tuned variant, because flags
//! of io_uring would affect only wakes across threads.

use std::future::Future;
use std::time::Duration;

use bench_kit::micro::{Host, Part, one_thread, parse_part, two_threads};
use compio::runtime::{JoinHandle, Runtime, spawn};
use local_sync::mpsc::bounded;

struct Compio;

impl Host for Compio {
    type Handle = JoinHandle<()>;

    fn spawn<F: Future<Output = ()> + Send + 'static>(future: F) -> Self::Handle {
        spawn(future)
    }

    async fn join(handle: Self::Handle) {
        let _ = handle.await;
    }

    fn detach(handle: Self::Handle) {
        handle.detach();
    }

    fn sleep(time: Duration) -> impl Future<Output = ()> {
        compio::time::sleep(time)
    }

    async fn ping_pong(rounds: usize) {
        let (ping_sender, mut ping_receiver) = bounded::channel(1);
        let (pong_sender, mut pong_receiver) = bounded::channel(1);
        let first_task = spawn(async move {
            for _ in 0..rounds {
                let _ = ping_sender.send(()).await;
                pong_receiver.recv().await;
            }
        });
        let second_task = spawn(async move {
            while ping_receiver.recv().await.is_some() {
                let _ = pong_sender.send(()).await;
            }
        });
        let _ = (first_task.await, second_task.await);
    }
}

fn main() {
    let peer = "compio";
    match parse_part(&["default"]).0 {
        Part::OneThread => block_on(one_thread::<Compio>(peer)),
        Part::TwoThreads => two_threads(peer, block_on),
    }
    // Exit without freeing the million idle tasks, which would only take time.
    std::process::exit(0);
}

fn block_on(future: impl Future<Output = ()>) {
    let runtime = Runtime::new();
    runtime.expect("a runtime can be built").block_on(future);
}
