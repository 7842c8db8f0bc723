//! Runs the measurements `conserve` and `multi` on two vCPUs (workers with their own run queues).
//! In `conserve`, one coroutine (the *neighbour*) computes while another waits. The other coroutine
//! is as urgent as the neighbour, less urgent, or more urgent.
//! Each case is measured without preemption (*inline* vCPUs) and with it (*preemptible* vCPUs).
//! `multi` is measured without preemption.

use std::future::Future;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use bench_kit::conserve::{Conserve, conserve};
use bench_kit::multi::{Multi, multi};
use bench_kit::workers::TwoWorkers;
use upshift::sync::{mpsc, oneshot};
use upshift::{Handle, Level, Preemption, Priority, Runtime};

/// `conserve` with the other coroutine at level `OTHER` and the neighbour at level 40.
struct OtherLevel<const OTHER: u8>;

impl<const OTHER: u8> Conserve for OtherLevel<OTHER> {
    fn spawn<F: Future<Output = ()> + Send + 'static>(future: F) {
        upshift::spawn(future, Level::at::<40>()).detach();
    }

    fn spawn_other<F: Future<Output = ()> + Send + 'static>(future: F) {
        upshift::spawn(future, Level::at::<OTHER>()).detach();
    }

    fn sleep(time: Duration) -> impl Future<Output = ()> + Send {
        upshift::time::sleep(time)
    }

    async fn read(socket: UnixStream) {
        let mut socket = upshift::net::UnixStream::from_std(socket).expect("registration failed");
        let _ = socket.recv().await;
    }
}

struct Spawner(Handle);

impl Multi for Spawner {
    type Sender = mpsc::Sender<usize>;
    type Receiver = mpsc::Receiver<usize>;

    fn spawn<F: Future<Output = ()> + Send + 'static>(future: F) {
        upshift::spawn(future, Priority::Inherit).detach();
    }

    fn spawn_remotely<F: Future<Output = ()> + Send + 'static>(&self, future: F) {
        let handle = self.0.spawn(future, Priority::Inherit);
        handle.expect("the runtime is running").detach();
    }

    fn yield_now() -> impl Future<Output = ()> + Send {
        upshift::yield_now()
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

/// Builds a runtime whose main coroutine is the least urgent, since it only waits.
fn build(preemption: Preemption, parks_at_once: bool) -> Runtime {
    let mut builder = Runtime::builder()
        .vcpus(2)
        .main_level(Level::LEAST_URGENT)
        .preemption(preemption);
    if parks_at_once {
        builder = builder.spin(Duration::ZERO);
    }
    match builder.build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(1)
        }
    }
}

/// Runs the benchmarks. The variant `preempt` enables preemption; with the variant `parked` idle
/// vCPUs do not spin before they park.
pub(crate) fn run(part: TwoWorkers, variant: &str) {
    let (preemption, peer) = match variant {
        "preempt" => (Preemption::Required, "upshift-preempt"),
        "parked" => (Preemption::Off, "upshift-parked"),
        _ => (Preemption::Off, "upshift"),
    };
    let runtime = build(preemption, variant == "parked");
    match part {
        TwoWorkers::Conserve => runtime.block_on(async {
            conserve::<OtherLevel<40>>(peer).await;
            conserve::<OtherLevel<50>>(&format!("{peer}, less urgent")).await;
            conserve::<OtherLevel<10>>(&format!("{peer}, more urgent")).await;
        }),
        TwoWorkers::Multi => {
            let (end_sender, end_receiver) = oneshot::channel();
            runtime.block_on(async {
                let host = Spawner(Handle::current().expect("in a coroutine"));
                std::thread::spawn(move || {
                    multi(peer, &host);
                    let _ = end_sender.send(());
                });
                let _ = end_receiver.await;
            });
        }
    }
}
