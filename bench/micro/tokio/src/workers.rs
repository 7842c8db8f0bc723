//! Runs the measurements `conserve` and `multi` on two workers of the multi-thread runtime.

use std::future::Future;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use bench_kit::conserve::{Conserve, conserve};
use bench_kit::multi::{Multi, multi};
use bench_kit::workers::TwoWorkers;
use tokio::io::AsyncReadExt;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc, oneshot};

const PEER: &str = "tokio-mt";

struct Tokio(Runtime);

impl Conserve for Tokio {
    fn spawn<F: Future<Output = ()> + Send + 'static>(future: F) {
        tokio::spawn(future);
    }

    fn spawn_other<F: Future<Output = ()> + Send + 'static>(future: F) {
        tokio::spawn(future);
    }

    fn sleep(time: Duration) -> impl Future<Output = ()> + Send {
        tokio::time::sleep(time)
    }

    async fn read(socket: UnixStream) {
        socket.set_nonblocking(true).expect("cannot set flags");
        let mut socket = tokio::net::UnixStream::from_std(socket).expect("registration failed");
        let _ = socket.read_u8().await;
    }
}

impl Multi for Tokio {
    type Sender = mpsc::Sender<usize>;
    type Receiver = mpsc::Receiver<usize>;

    fn spawn<F: Future<Output = ()> + Send + 'static>(future: F) {
        tokio::spawn(future);
    }

    fn spawn_remotely<F: Future<Output = ()> + Send + 'static>(&self, future: F) {
        self.0.spawn(future);
    }

    fn yield_now() -> impl Future<Output = ()> + Send {
        tokio::task::yield_now()
    }

    fn oneshot() -> (
        impl FnOnce() + Send + 'static,
        impl Future<Output = ()> + Send + 'static,
    ) {
        let (sender, receiver) = oneshot::channel();
        let send = move || {
            let _ = sender.send(());
        };
        (send, async {
            let _ = receiver.await;
        })
    }

    fn channel(capacity: usize) -> (Self::Sender, Self::Receiver) {
        mpsc::channel(capacity)
    }

    async fn send(sender: &Self::Sender, message: usize) {
        let _ = sender.send(message).await;
    }

    async fn receive(receiver: &mut Self::Receiver) -> Option<usize> {
        receiver.recv().await
    }
}

/// Runs the benchmarks. The main thread is not one of the workers.
pub(crate) fn run(part: TwoWorkers) {
    let mut builder = Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime can be built");
    match part {
        TwoWorkers::Conserve => runtime.block_on(conserve::<Tokio>(PEER)),
        TwoWorkers::Multi => multi(PEER, &Tokio(runtime)),
    }
}
