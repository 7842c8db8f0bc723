//! Runs the measurements `conserve` and `multi` on two threads with one executor. A channel of
//! capacity 1 replaces a oneshot channel.

use std::future::{Future, pending};
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use async_channel::{Receiver, Sender, bounded};
use async_io::{Async, Timer, block_on};
use bench_kit::conserve::{Conserve, conserve};
use bench_kit::multi::{Multi, multi};
use bench_kit::workers::TwoWorkers;

use crate::EXECUTOR;

const PEER: &str = "smol";

struct Smol;

impl Conserve for Smol {
    fn spawn<F: Future<Output = ()> + Send + 'static>(future: F) {
        EXECUTOR.spawn(future).detach();
    }

    fn spawn_other<F: Future<Output = ()> + Send + 'static>(future: F) {
        EXECUTOR.spawn(future).detach();
    }

    async fn sleep(time: Duration) {
        Timer::after(time).await;
    }

    async fn read(socket: UnixStream) {
        let socket = Async::new(socket).expect("registration failed");
        let _ = socket.read_with(|mut socket| socket.read(&mut [0])).await;
    }
}

impl Multi for Smol {
    type Sender = Sender<usize>;
    type Receiver = Receiver<usize>;

    fn spawn<F: Future<Output = ()> + Send + 'static>(future: F) {
        EXECUTOR.spawn(future).detach();
    }

    fn spawn_remotely<F: Future<Output = ()> + Send + 'static>(&self, future: F) {
        EXECUTOR.spawn(future).detach();
    }

    fn oneshot() -> (
        impl FnOnce() + Send + 'static,
        impl Future<Output = ()> + Send + 'static,
    ) {
        let (sender, receiver) = bounded(1);
        let send = move || {
            let _ = sender.try_send(());
        };
        (send, async move {
            let _ = receiver.recv().await;
        })
    }

    fn channel(capacity: usize) -> (Self::Sender, Self::Receiver) {
        bounded(capacity)
    }

    async fn send(sender: &Self::Sender, message: usize) {
        let _ = sender.send(message).await;
    }

    async fn receive(receiver: &mut Self::Receiver) -> Option<usize> {
        receiver.recv().await.ok()
    }
}

/// Runs the benchmarks. With `conserve` the main task runs on one of the two threads, which also
/// polls other tasks.
pub(crate) fn run(part: TwoWorkers) {
    let worker = || block_on(EXECUTOR.run(pending::<()>()));
    std::thread::spawn(worker);
    match part {
        TwoWorkers::Conserve => block_on(EXECUTOR.run(conserve::<Smol>(PEER))),
        TwoWorkers::Multi => {
            std::thread::spawn(worker);
            multi(PEER, &Smol);
        }
    }
}
