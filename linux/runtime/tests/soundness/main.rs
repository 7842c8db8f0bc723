//! Tests that safe code cannot cause undefined behaviour (checked by the address sanitizer), a lost
//! wake or a hang, no matter how it uses a runtime and its handles.

mod extremes;
mod foreign_code;
mod forgotten;

use std::time::Duration;

use upshift::net::{TcpListener, TcpStream};
use upshift::time::sleep;
use upshift::{Level, Preemption, Runtime};

/// Returns functions that build a runtime of each kind: one vCPU, two, and preemptible.
fn runtime_builders() -> [fn() -> Runtime; 3] {
    [
        || Runtime::builder().vcpus(1).build().unwrap(),
        || Runtime::builder().vcpus(2).build().unwrap(),
        || {
            let builder = Runtime::builder()
                .vcpus(2)
                .preemption(Preemption::Preferred);
            builder.build().unwrap()
        },
    ]
}

async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (client, server) = futures_util::join!(TcpStream::connect(address), listener.accept());
    (client.unwrap(), server.unwrap().0)
}

/// Asserts that the current runtime still serves sockets, timers and spawned coroutines.
async fn assert_runtime_works() {
    let (mut local, mut peer) = pair().await;
    local.write_all("still works").await.0.unwrap();
    assert_eq!(&peer.recv().await.unwrap()[..], b"still works");
    sleep(Duration::from_micros(100)).await;
    let handle = upshift::spawn(async { 7 }, Level::at::<3>());
    assert_eq!(handle.await.unwrap(), 7);
}

/// Polls a future once, and leaks it.
async fn forget<F: Future + 'static>(future: F) {
    let mut future = Box::pin(future);
    let _ = futures_util::poll!(&mut future);
    std::mem::forget(future);
}
