//! Tests that dropping a socket, pipe or descriptor closes it before the drop returns, even while
//! operations on it are in flight. This holds for both drivers (io_uring and epoll). If another
//! thread drops the value, it is closed soon afterwards, even if a coroutine computes meanwhile.

use std::future::poll_fn;
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr as UnixAddr;
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use std::{net, thread};

use upshift::io::{AsyncBufReadExt, AsyncFd, AsyncReadExt, AsyncWriteExt};
use upshift::net::{TcpListener, TcpStream, UdpSocket, UnixDatagram, UnixListener, UnixStream};
use upshift::{Driver, Handle, Preemption, Runtime};

const TIMEOUT: Duration = Duration::from_secs(20);

/// Runs `test` on both drivers, without preemption and with it.
fn on_all_runtimes(test: impl AsyncFn()) {
    for driver in [Driver::Auto, Driver::Readiness] {
        for preemption in [Preemption::Off, Preemption::Preferred] {
            let runtime = Runtime::builder().vcpus(1).driver(driver);
            let runtime = runtime.preemption(preemption).build().unwrap();
            runtime.block_on(test());
        }
    }
}

/// Polls a call once, drops it, and waits until the kernel has ended the operation.
async fn poll_and_drop<T>(call: impl Future<Output = T>) {
    let mut call = Box::pin(call);
    let is_pending = poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx).is_pending())).await;
    assert!(is_pending);
    upshift::time::sleep(Duration::from_millis(5)).await;
}

/// Polls a call once and drops it before it is submitted to the kernel.
fn poll_and_drop_unsubmitted<T>(call: impl Future<Output = T>) {
    let mut call = Box::pin(call);
    let mut cx = Context::from_waker(Waker::noop());
    assert!(call.as_mut().poll(&mut cx).is_pending());
}

fn is_refused(address: SocketAddr) -> bool {
    let connected = net::TcpStream::connect(address);
    connected.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

/// Returns a connection of this runtime, a channel, and the other end of the connection. A thread
/// reads at the other end until the end of the stream, and sends the bytes through the channel.
async fn connection() -> (TcpStream, mpsc::Receiver<Vec<u8>>, net::TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (stream, _) = listener.accept().await.unwrap();
    let (sender, received) = mpsc::channel();
    let mut reader = peer.try_clone().unwrap();
    thread::spawn(move || {
        let mut all = Vec::new();
        let end = reader.read_to_end(&mut all);
        assert!(end.is_ok_and(|count| count == all.len()));
        sender.send(all)
    });
    (stream, received, peer)
}

#[test]
fn the_address_of_a_dropped_listener_is_free() {
    on_all_runtimes(async || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        poll_and_drop(listener.accept()).await;
        drop(listener);
        assert!(is_refused(address));
        let second = TcpListener::bind(address).unwrap();
        poll_and_drop_unsubmitted(second.accept());
        drop(second);
        assert!(is_refused(address));
    });
}

#[test]
fn the_name_of_a_dropped_unix_listener_is_free() {
    on_all_runtimes(async || {
        let name = format!("upshift-closing-{}", std::process::id());
        let address = UnixAddr::from_abstract_name(name).unwrap();
        let listener = UnixListener::bind_addr(&address).unwrap();
        poll_and_drop(listener.accept()).await;
        drop(listener);
        let refused = std::os::unix::net::UnixStream::connect_addr(&address);
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::ConnectionRefused);
        UnixListener::bind_addr(&address).unwrap();
    });
}

#[test]
fn the_addresses_of_dropped_datagram_sockets_are_free() {
    on_all_runtimes(async || {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        poll_and_drop(socket.recv(&mut [0; 8])).await;
        poll_and_drop_unsubmitted(socket.recv_from(&mut [0; 8]));
        drop(socket);
        let socket = UdpSocket::bind(address).unwrap();
        let mut datagrams = socket.datagrams();
        poll_and_drop(datagrams.next()).await;
        drop(socket);
        assert!(UdpSocket::bind(address).is_err());
        drop(datagrams);
        UdpSocket::bind(address).unwrap();

        let name = format!("upshift-datagrams-{}", std::process::id());
        let address = UnixAddr::from_abstract_name(name).unwrap();
        let socket = UnixDatagram::bind_addr(&address).unwrap();
        poll_and_drop(socket.recv(&mut [0; 8])).await;
        drop(socket);
        UnixDatagram::bind_addr(&address).unwrap();
    });
}

#[test]
fn the_peer_of_a_dropped_stream_receives_the_end_during_the_poll() {
    on_all_runtimes(async || {
        // The stream has a multishot receive, a single receive, or none.
        for case in 0..3 {
            let (mut stream, received, _peer) = connection().await;
            match case {
                0 => poll_and_drop(stream.recv()).await,
                1 => poll_and_drop(stream.read(vec![0; 8])).await,
                _ => {}
            }
            stream.write_all("bye").await.0.unwrap();
            drop(stream);
            assert_eq!(
                received.recv_timeout(TIMEOUT).unwrap(),
                b"bye",
                "case {case}"
            );
        }
        // The halves of a stream are dropped one after the other.
        let (stream, received, _peer) = connection().await;
        let (mut reader, writer) = stream.into_split();
        poll_and_drop(reader.fill_buf()).await;
        std::mem::forget(writer);
        drop(reader);
        assert_eq!(
            received.try_recv().unwrap_err(),
            mpsc::TryRecvError::Empty,
            "the stream was closed although the other half exists"
        );
        let (one, other) = UnixStream::pair().unwrap();
        let mut other = std::os::unix::net::UnixStream::from(dup(&other));
        let mut one = one;
        poll_and_drop(one.recv()).await;
        drop(one);
        assert_eq!(other.read(&mut [0; 8]).unwrap(), 0);
    });
}

fn dup(file: &impl AsFd) -> OwnedFd {
    file.as_fd().try_clone_to_owned().unwrap()
}

#[test]
fn a_stream_that_waits_to_write_is_closed() {
    on_all_runtimes(async || {
        let (mut stream, other) = UnixStream::pair().unwrap();
        let mut peer = std::os::unix::net::UnixStream::from(dup(&other));
        drop(other);
        poll_and_drop(AsyncWriteExt::write_all(&mut stream, &[7; 8 << 20])).await;
        drop(stream);
        let mut all = Vec::new();
        peer.set_read_timeout(Some(TIMEOUT)).unwrap();
        peer.read_to_end(&mut all).unwrap();
        assert!(all.iter().all(|byte| *byte == 7));
    });
}

#[test]
fn dropped_ends_of_pipes_are_closed() {
    on_all_runtimes(async || {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let mut reader = upshift::io::PipeReader::from_owned_fd(reader.into()).unwrap();
        poll_and_drop(reader.read(&mut [0; 8])).await;
        drop(reader);
        assert_eq!(
            writer.write(b"x").unwrap_err().kind(),
            ErrorKind::BrokenPipe
        );

        let (mut reader, writer) = std::io::pipe().unwrap();
        let mut writer = upshift::io::PipeWriter::from_owned_fd(writer.into()).unwrap();
        poll_and_drop(writer.write_all(&[7; 1 << 20])).await;
        drop(writer);
        let mut all = Vec::new();
        reader.read_to_end(&mut all).unwrap();
        assert!(!all.is_empty());

        let (reader, mut writer) = std::io::pipe().unwrap();
        let reader = AsyncFd::new(reader);
        poll_and_drop(reader.readable()).await;
        drop(reader);
        assert_eq!(
            writer.write(b"x").unwrap_err().kind(),
            ErrorKind::BrokenPipe
        );
    });
}

#[test]
fn duplicates_of_a_dropped_descriptor_stay_usable() {
    on_all_runtimes(async || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let other = net::TcpListener::from(dup(&listener));
        poll_and_drop(listener.accept()).await;
        drop(listener);
        let mut client = net::TcpStream::connect(address).unwrap();
        // The readiness driver has set `O_NONBLOCK`, which all descriptors of the file share.
        other.set_nonblocking(false).unwrap();
        other.accept().unwrap().0.write_all(b"hi").unwrap();
        let mut all = Vec::new();
        client.read_to_end(&mut all).unwrap();
        assert_eq!(all, b"hi");

        let (mut stream, received, mut peer) = connection().await;
        let mut other = net::TcpStream::from(dup(&stream));
        poll_and_drop(stream.recv()).await;
        drop(stream);
        peer.write_all(b"there").unwrap();
        other.read_exact(&mut [0; 5]).unwrap();
        other.write_all(b"still").unwrap();
        drop(other);
        assert_eq!(received.recv_timeout(TIMEOUT).unwrap(), b"still");
    });
}

#[test]
fn unaccepted_connections_are_closed_with_their_listener() {
    on_all_runtimes(async || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        poll_and_drop(listener.accept()).await;
        let mut clients: Vec<_> = (0..10)
            .map(|_| net::TcpStream::connect(address).unwrap())
            .collect();
        upshift::yield_now().await;
        // The ring has accepted a few connections, and the others are in the kernel's queue.
        clients.extend((0..10).map(|_| net::TcpStream::connect(address).unwrap()));
        drop(listener);
        for mut client in clients {
            client.set_read_timeout(Some(TIMEOUT)).unwrap();
            match client.read(&mut [0; 8]) {
                Ok(count) => assert_eq!(count, 0),
                Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
            }
        }
        assert!(is_refused(address));
    });
}

#[test]
fn a_dropped_connect_makes_no_connection() {
    on_all_runtimes(async || {
        // The connect waits, because the listener's queue is full.
        let name = format!("upshift-full-{}", std::process::id());
        let address = UnixAddr::from_abstract_name(name).unwrap();
        let listener = std::os::unix::net::UnixListener::bind_addr(&address).unwrap();
        listener.set_nonblocking(true).unwrap();
        poll_and_drop(async {
            loop {
                std::mem::forget(UnixStream::connect_addr(&address).await.unwrap());
            }
        })
        .await;
        while listener.accept().is_ok() {}
        let later_accept = listener.accept().unwrap_err();
        assert_eq!(later_accept.kind(), ErrorKind::WouldBlock);
    });
}

/// Waits until the address can be bound. Returns false if it cannot within [`TIMEOUT`].
fn wait_until_free(address: SocketAddr) -> bool {
    let deadline = Instant::now() + TIMEOUT;
    while Instant::now() < deadline {
        if net::TcpListener::bind(address).is_ok() {
            return true;
        }
        thread::sleep(Duration::from_millis(1));
    }
    false
}

#[test]
fn a_drop_on_another_thread_closes_while_the_vcpu_idles() {
    on_all_runtimes(async || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        poll_and_drop(listener.accept()).await;
        let freed = upshift::task::spawn_blocking(move || {
            drop(listener);
            wait_until_free(address)
        });
        assert!(freed.await.unwrap());
    });
}

#[test]
fn a_drop_on_another_thread_closes_during_the_poll_of_the_vcpu() {
    for driver in [Driver::Auto, Driver::Readiness] {
        for (vcpus, preemption) in [(2, Preemption::Off), (1, Preemption::Preferred)] {
            let builder = Runtime::builder().vcpus(vcpus).driver(driver);
            let runtime = builder.preemption(preemption).build().unwrap();
            if vcpus == 1 && runtime.handle().metrics().preemption.vcpus == 0 {
                eprintln!("skipped: the kernel does not permit preemption");
                continue;
            }
            let poll = async {
                let listener = TcpListener::bind("127.0.0.1:0").unwrap();
                let address = listener.local_addr().unwrap();
                poll_and_drop(listener.accept()).await;
                let other = thread::spawn(move || {
                    drop(listener);
                    wait_until_free(address)
                });
                // The join blocks the poll.
                other.join().unwrap()
            };
            assert!(runtime.block_on(poll), "{driver:?}, {vcpus} vCPUs");
        }
    }
}

#[test]
fn an_awaited_close_waits_for_other_vcpus() {
    for driver in [Driver::Auto, Driver::Readiness] {
        let runtime = Runtime::builder().vcpus(2).driver(driver).build().unwrap();
        runtime.block_on(async {
            for _ in 0..20 {
                let listener = TcpListener::bind("127.0.0.1:0").unwrap();
                let address = listener.local_addr().unwrap();
                let listener_task = async {
                    poll_and_drop(listener.accept()).await;
                    listener
                };
                let listener_task = upshift::spawn(listener_task, upshift::Priority::Inherit);
                upshift::io::close(listener_task.await.unwrap()).await;
                TcpListener::bind(address).unwrap();
            }
        });
    }
}

#[test]
fn the_end_of_a_connection_costs_at_most_one_system_call() {
    let runtime = Runtime::builder().vcpus(1).driver(Driver::Ring).build();
    let Ok(runtime) = runtime else {
        eprintln!("skipped: io_uring is not available");
        return;
    };
    let enters = || Handle::current().unwrap().metrics().vcpus[0].ring.enters;
    runtime.block_on(async {
        let mut streams = Vec::new();
        for _ in 0..50 {
            let (mut stream, ..) = connection().await;
            poll_and_drop_unsubmitted(stream.recv());
            streams.push(stream);
        }
        upshift::time::sleep(Duration::from_millis(5)).await;
        let before = enters();
        drop(streams);
        upshift::yield_now().await;
        upshift::time::sleep(Duration::from_millis(5)).await;
        let new_enters = enters() - before;
        // One system call per connection, with a margin for the waits of this test.
        assert!(
            new_enters <= 50 + 5,
            "{new_enters} system calls for 50 connections"
        );
        // Without an operation in flight, the end costs no system call.
        let mut streams = Vec::new();
        for _ in 0..50 {
            streams.push(connection().await.0);
        }
        let before = enters();
        drop(streams);
        upshift::time::sleep(Duration::from_millis(5)).await;
        let new_enters = enters() - before;
        assert!(
            new_enters <= 5,
            "{new_enters} system calls for 50 connections"
        );
    });
}
