//! Microbenchmarks of glommio, with its default settings.

mod workers;

use std::future::Future;
use std::time::Duration;

use bench_kit::micro::{Host, Part, one_thread, parse_part, two_threads};
use bench_kit::workers::{TwoWorkers, parse_two_workers};
use glommio::channels::local_channel::new_bounded;
use glommio::timer::sleep;
use glommio::{LocalExecutorBuilder, Placement, Task, spawn_local};

struct Glommio;

impl Host for Glommio {
    type Handle = Task<()>;

    fn spawn<F: Future<Output = ()> + Send + 'static>(future: F) -> Self::Handle {
        spawn_local(future)
    }

    async fn join(handle: Self::Handle) {
        handle.await;
    }

    fn detach(handle: Self::Handle) {
        drop(handle.detach());
    }

    fn sleep(time: Duration) -> impl Future<Output = ()> {
        sleep(time)
    }

    async fn ping_pong(rounds: usize) {
        let (ping_sender, ping_receiver) = new_bounded(1);
        let (pong_sender, pong_receiver) = new_bounded(1);
        let first_task = spawn_local(async move {
            for _ in 0..rounds {
                let _ = ping_sender.send(()).await;
                pong_receiver.recv().await;
            }
        });
        let second_task = spawn_local(async move {
            while ping_receiver.recv().await.is_some() {
                let _ = pong_sender.send(()).await;
            }
        });
        first_task.await;
        second_task.await;
    }
}

fn main() {
    if let Some((TwoWorkers::Conserve, _)) = parse_two_workers() {
        workers::run();
        std::process::exit(0);
    }
    let peer = "glommio";
    match parse_part(&["default"]).0 {
        Part::OneThread => block_on(one_thread::<Glommio>(peer)),
        Part::TwoThreads => two_threads(peer, block_on),
    }
    // A million idle tasks need not be freed.
    std::process::exit(0);
}

fn block_on(future: impl Future<Output = ()>) {
    let executor = LocalExecutorBuilder::new(Placement::Unbound).make();
    executor.expect("an executor can be built").run(future);
}
