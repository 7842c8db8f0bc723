//! Tests of futures that are dropped while their operations are in flight. Buffers must live until
//! the kernel has finished with them (checked by the address sanitizer), nothing may leak, and
//! later operations must work.

use std::pin::Pin;

use futures_util::poll;
use upshift::fs::File;
use upshift::io::{AsyncReadExt, AsyncWriteExt};
use upshift::net::{TcpListener, TcpStream, UdpSocket, UnixStream};
use upshift::{Preemption, Priority, Runtime};

type Attempt = Pin<Box<dyn Future<Output = ()> + Send>>;

async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (client, server) = futures_util::join!(TcpStream::connect(address), listener.accept());
    (client.unwrap(), server.unwrap().0)
}

/// Polls each attempt `polls` times, then drops its future.
async fn attempts(polls: usize) {
    let futures_to_drop: Vec<Attempt> = vec![
        Box::pin(async {
            let (mut one, _other) = pair().await;
            let _ = one.read(vec![0; 1 << 16]).await;
        }),
        Box::pin(async {
            let (mut one, _other) = pair().await;
            let _ = one.write_all(vec![1; 6 << 20]).await;
        }),
        Box::pin(async {
            let (one, other) = UnixStream::pair().unwrap();
            let (mut reader, _writer) = one.into_split();
            let _other = other;
            let _ = reader.recv().await;
        }),
        Box::pin(async {
            let (mut one, _other) = UnixStream::pair().unwrap();
            let bytes = vec![2; 2 << 20];
            let _ = AsyncWriteExt::write_all(&mut one, &bytes).await;
        }),
        Box::pin(async {
            let file = File::open("/proc/self/exe").await.unwrap();
            let mut bytes = Vec::new();
            let _ = file
                .into_stream()
                .take(1 << 19)
                .read_to_end(&mut bytes)
                .await;
        }),
        Box::pin(async {
            let file = File::open("/proc/self/exe").await.unwrap();
            let (count, _) = file.read_at(vec![0; 1 << 18], 0).await;
            count.unwrap();
        }),
        Box::pin(async {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            let _ = socket.datagrams().next().await;
        }),
        Box::pin(async {
            let (mut reader, _writer) = upshift::io::pipe().unwrap();
            let _ = reader.read(&mut [0; 10]).await;
        }),
        Box::pin(async {
            assert!(upshift::fs::metadata("/").await.unwrap().is_dir());
            assert!(upshift::fs::canonicalize("/").await.unwrap().is_absolute());
        }),
    ];
    for mut attempt in futures_to_drop {
        for _ in 0..polls {
            if poll!(attempt.as_mut()).is_ready() {
                break;
            }
            upshift::yield_now().await;
        }
    }
}

fn drop_at_any_moment(runtime: &Runtime) {
    runtime.block_on(async {
        for round in 0..2 {
            let running: Vec<_> = (0..12)
                .map(|polls| upshift::spawn(attempts(polls + round), Priority::Inherit))
                .collect();
            for task in running {
                task.await.unwrap();
            }
        }
        // Coroutines are cancelled as well.
        let running: Vec<_> = (0..20)
            .map(|_| upshift::spawn(attempts(100), Priority::Inherit))
            .collect();
        upshift::yield_now().await;
        for task in running {
            task.cancel();
            let _ = task.await;
        }
        let (mut one, mut other) = pair().await;
        one.write_all("still works").await.0.unwrap();
        assert_eq!(&other.recv().await.unwrap()[..], b"still works");
    });
}

#[test]
fn futures_are_dropped_on_one_vcpu() {
    drop_at_any_moment(&Runtime::builder().vcpus(1).build().unwrap());
}

#[test]
fn futures_are_dropped_on_two_vcpus() {
    drop_at_any_moment(&Runtime::builder().vcpus(2).build().unwrap());
}

#[test]
fn futures_are_dropped_on_preemptible_vcpus() {
    let builder = Runtime::builder()
        .vcpus(2)
        .preemption(Preemption::Preferred);
    drop_at_any_moment(&builder.build().unwrap());
}

#[test]
fn futures_are_dropped_with_few_receive_buffers() {
    drop_at_any_moment(&Runtime::builder().vcpus(2).buffers(4, 64).build().unwrap());
}

/// A receive in flight keeps its socket open. Its cancellation must be complete when `block_on`
/// returns, because the runtime polls nothing afterwards.
#[test]
fn a_dropped_connection_is_closed_when_block_on_returns() {
    use std::io::{Read, Write};
    for vcpus in [1, 2] {
        let runtime = Runtime::builder().vcpus(vcpus).build().unwrap();
        let bound = runtime.block_on(async { TcpListener::bind("127.0.0.1:0") });
        let listener = bound.unwrap();
        let mut client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        client.write_all(b"hi").unwrap();
        runtime.block_on(async {
            let (mut stream, _) = listener.accept().await.unwrap();
            assert_eq!(&stream.recv().await.unwrap()[..], b"hi");
            stream.write_all("bye").await.0.unwrap();
        });
        let timeout = std::time::Duration::from_secs(10);
        client.set_read_timeout(Some(timeout)).unwrap();
        let mut all = Vec::new();
        client
            .read_to_end(&mut all)
            .expect("the connection was not closed");
        assert_eq!(all, b"bye");
    }
}

/// The end of a runtime does not examine all remaining coroutines repeatedly.
#[test]
fn a_runtime_of_many_coroutines_ends_in_about_the_time_that_it_took_to_spawn_them() {
    for preemption in [Preemption::Off, Preemption::Preferred] {
        let builder = Runtime::builder().vcpus(1).preemption(preemption);
        let runtime = builder.build().unwrap();
        let began = std::time::Instant::now();
        runtime.block_on(async {
            for _ in 0..150_000 {
                upshift::spawn(std::future::pending::<()>(), Priority::Inherit).detach();
            }
            upshift::yield_now().await;
        });
        let spawn_time = began.elapsed();
        let began = std::time::Instant::now();
        drop(runtime);
        let drop_time = began.elapsed();
        // The margin is wide, because a repeated examination takes time in proportion to the square
        // of the number of coroutines.
        let bound = 20 * spawn_time + std::time::Duration::from_secs(1);
        assert!(
            drop_time < bound,
            "the drop took {drop_time:?}, the spawns {spawn_time:?}"
        );
    }
}
