//! Tests of the macros for system calls. Each macro has a blocking form and, with the id of a
//! coroutine as its last argument, an asynchronous form. On both drivers, both forms must give the
//! same result for the same arguments.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use upshift::sys::{accept, connect, fsync, openat, read, recv, send, write};
use upshift::{CoroutineId, Driver, Priority, Runtime, time};

/// Runs the future of `test` on one vCPU, first with io_uring, if it is available, and then
/// without.
fn on_both_drivers<F: Future<Output = ()>>(test: impl Fn(CoroutineId) -> F) {
    for driver in [Driver::Auto, Driver::Readiness] {
        let runtime = Runtime::builder().vcpus(1).driver(driver).build().unwrap();
        runtime.block_on(async { test(upshift::get_cid().unwrap()).await });
    }
}

fn errno<T>(result: io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Returns an address of this machine on which no socket listens.
fn unused_address() -> SocketAddr {
    listener().1
}

fn socket() -> Socket {
    Socket::new(Domain::IPV4, Type::STREAM, None).unwrap()
}

#[test]
fn both_forms_of_read_and_write_give_the_same_results() {
    on_both_drivers(|cid| async move {
        let (reader, writer) = io::pipe().unwrap();
        let (written, bytes) = write!(&writer, b"one".as_slice());
        assert_eq!((written.unwrap(), bytes), (3, b"one".as_slice()));
        let (count, buffer) = read!(&reader, Vec::with_capacity(8), cid).await;
        assert_eq!((count.unwrap(), buffer), (3, b"one".to_vec()));
        let (written, bytes) = write!(&writer, b"two".as_slice(), cid).await;
        assert_eq!((written.unwrap(), bytes), (3, b"two".as_slice()));
        let (count, buffer) = read!(&reader, Vec::with_capacity(8));
        assert_eq!((count.unwrap(), buffer), (3, b"two".to_vec()));

        let directory = std::fs::File::open("/").unwrap();
        assert_eq!(errno(read!(&directory, [0; 8]).0), Some(libc::EISDIR));
        let asynchronous = read!(&directory, [0; 8], cid).await;
        assert_eq!(errno(asynchronous.0), Some(libc::EISDIR));
        drop(reader);
        assert_eq!(errno(write!(&writer, "late").0), Some(libc::EPIPE));
        let asynchronous = write!(&writer, "late", cid).await;
        assert_eq!(errno(asynchronous.0), Some(libc::EPIPE));
    });
}

#[test]
fn both_forms_of_recv_and_send_give_the_same_results() {
    on_both_drivers(|cid| async move {
        let (local, peer) = UnixStream::pair().unwrap();
        let (sent, text) = send!(&local, "blocking");
        assert_eq!((sent.unwrap(), text), (8, "blocking"));
        let (count, buffer) = recv!(&peer, Vec::with_capacity(64), cid).await;
        assert_eq!((count.unwrap(), buffer), (8, b"blocking".to_vec()));
        let receiving = recv!(&peer, Vec::with_capacity(64), cid);
        let (sent, text) = send!(&local, String::from("awaited"), cid).await;
        assert_eq!((sent.unwrap(), text.as_str()), (7, "awaited"));
        assert_eq!(receiving.await.1, b"awaited");
        send!(&local, "last", cid).await.0.unwrap();
        assert_eq!(recv!(&peer, Vec::with_capacity(64)).1, b"last");

        // A send to a closed peer is an error without a signal, and a receive returns the end of
        // the data.
        drop(local);
        assert_eq!(errno(send!(&peer, "late").0), Some(libc::EPIPE));
        let asynchronous = send!(&peer, "late", cid).await;
        assert_eq!(errno(asynchronous.0), Some(libc::EPIPE));
        assert_eq!(recv!(&peer, [7; 4]).0.unwrap(), 0);
        assert_eq!(recv!(&peer, [7; 4], cid).await.0.unwrap(), 0);
    });
}

#[test]
fn both_forms_of_accept_and_connect_give_the_same_results() {
    on_both_drivers(|cid| async move {
        let (listener, address) = listener();
        let accepting = accept!(&listener, cid);
        let client = socket();
        connect!(&client, address, cid).await.unwrap();
        let served = TcpStream::from(accepting.await.unwrap());
        assert_eq!(
            served.peer_addr().unwrap(),
            client.local_addr().unwrap().as_socket().unwrap()
        );
        // SAFETY: `fcntl` takes no pointer.
        let flags = unsafe { libc::fcntl(served.as_raw_fd(), libc::F_GETFD) };
        assert_eq!(flags, libc::FD_CLOEXEC);
        // SAFETY: `fcntl` takes no pointer.
        let flags = unsafe { libc::fcntl(served.as_raw_fd(), libc::F_GETFL) };
        assert_eq!(flags & libc::O_NONBLOCK, 0);

        let client = socket();
        connect!(&client, address).unwrap();
        let served = TcpStream::from(accept!(&listener).unwrap());
        assert_eq!(
            served.peer_addr().unwrap(),
            client.local_addr().unwrap().as_socket().unwrap()
        );

        assert_eq!(
            errno(connect!(&socket(), unused_address())),
            Some(libc::ECONNREFUSED)
        );
        let asynchronous = connect!(&socket(), unused_address(), cid).await;
        assert_eq!(errno(asynchronous), Some(libc::ECONNREFUSED));
        let datagrams = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert_eq!(errno(accept!(&datagrams)), Some(libc::EOPNOTSUPP));
        let asynchronous = accept!(&datagrams, cid).await;
        assert_eq!(errno(asynchronous), Some(libc::EOPNOTSUPP));
    });
}

#[test]
fn accept_blocks_at_a_listener_that_the_asynchronous_form_has_used() {
    on_both_drivers(|cid| async move {
        let (listener, address) = listener();
        let accepting = accept!(&listener, cid);
        let _first = TcpStream::connect(address).unwrap();
        accepting.await.unwrap();
        let later = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            TcpStream::connect(address).unwrap()
        });
        accept!(&listener).unwrap();
        later.join().unwrap();
    });
}

#[test]
fn a_dropped_accept_takes_no_connection() {
    on_both_drivers(|cid| async move {
        let (listener, address) = listener();
        let accepting = accept!(&listener, cid);
        // Gives the driver time to submit the operation.
        time::sleep(Duration::from_millis(2)).await;
        drop(accepting);
        // Gives the driver time to cancel the operation.
        time::sleep(Duration::from_millis(2)).await;
        let client = TcpStream::connect(address).unwrap();
        let served = TcpStream::from(accept!(&listener, cid).await.unwrap());
        assert_eq!(served.peer_addr().unwrap(), client.local_addr().unwrap());
    });
}

#[test]
fn fsync_of_a_file_succeeds_and_of_a_pipe_fails() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("synced");
    on_both_drivers(|cid| {
        let path = path.clone();
        async move {
            let file = std::fs::File::create(path).unwrap();
            write!(&file, "data").0.unwrap();
            fsync!(&file).unwrap();
            fsync!(&file, cid).await.unwrap();
            let (reader, _writer) = io::pipe().unwrap();
            assert_eq!(errno(fsync!(&reader)), Some(libc::EINVAL));
            assert_eq!(errno(fsync!(&reader, cid).await), Some(libc::EINVAL));
        }
    });
}

#[test]
fn openat_opens_a_path_and_a_name_in_a_directory() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    on_both_drivers(|cid| async move {
        let create = libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY;
        let one = openat!(None, path.join("one"), create, 0o600).unwrap();
        let directory: OwnedFd = openat!(None, path, libc::O_DIRECTORY, 0, cid)
            .await
            .unwrap();
        let directory = Some(directory.as_fd());
        let other = openat!(directory, "other", create, 0o600, cid)
            .await
            .unwrap();
        for (file, name) in [(one, "one"), (other, "other")] {
            write!(&file, name).0.unwrap();
            assert_eq!(std::fs::read_to_string(path.join(name)).unwrap(), name);
            let opened = openat!(directory, name, libc::O_RDONLY, 0).unwrap();
            assert_eq!(read!(&opened, Vec::with_capacity(8)).1, name.as_bytes());
            std::fs::remove_file(path.join(name)).unwrap();
        }
        let missing = openat!(directory, "one", libc::O_RDONLY, 0);
        assert_eq!(errno(missing), Some(libc::ENOENT));
        let missing = openat!(directory, "one", libc::O_RDONLY, 0, cid).await;
        assert_eq!(errno(missing), Some(libc::ENOENT));
        for invalid in [
            openat!(None, "a\0b", libc::O_RDONLY, 0),
            openat!(None, "a\0b", libc::O_RDONLY, 0, cid).await,
        ] {
            assert_eq!(invalid.unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
    });
}

/// A call wakes the coroutine whose id it was given, even if another coroutine has the call's
/// future and does not await it yet.
#[test]
fn asynchronous_forms_wake_the_given_coroutine() {
    on_both_drivers(|_| async {
        let (listener, address) = listener();
        let (local, peer) = UnixStream::pair().unwrap();
        let spawn_waiter = || {
            upshift::spawn(
                async {
                    let mut waited = false;
                    std::future::poll_fn(|_| {
                        if std::mem::replace(&mut waited, true) {
                            std::task::Poll::Ready(())
                        } else {
                            std::task::Poll::Pending
                        }
                    })
                    .await;
                },
                Priority::Inherit,
            )
        };
        let waiters = [(); 5].map(|()| spawn_waiter());
        upshift::yield_now().await;
        let [acceptor, connector, receiver, syncer, opener] =
            waiters.each_ref().map(|waiter| waiter.id());
        let client = socket();
        let file = tempfile::tempfile().unwrap();
        let calls = (
            accept!(&listener, acceptor),
            connect!(&client, address, connector),
            recv!(&peer, [0; 8], receiver),
            fsync!(&file, syncer),
            openat!(None, "/", libc::O_DIRECTORY, 0, opener),
        );
        send!(&local, "now").0.unwrap();
        for waiter in waiters {
            waiter.await.unwrap();
        }
        calls.0.await.unwrap();
        calls.1.await.unwrap();
        assert_eq!(calls.2.await.0.unwrap(), 3);
        calls.3.await.unwrap();
        calls.4.await.unwrap();
    });
}

/// The future of a call is `Send`, also if its buffer is a `&'static [u8]`, so a coroutine that may
/// move between threads can await it.
#[test]
fn a_coroutine_that_may_move_awaits_an_asynchronous_form() {
    on_both_drivers(|_| async {
        let (reader, writer) = io::pipe().unwrap();
        let written = upshift::spawn(
            async move {
                let cid = upshift::get_cid().unwrap();
                write!(&writer, b"static".as_slice(), cid).await.0
            },
            Priority::Inherit,
        );
        assert_eq!(written.await.unwrap().unwrap(), 6);
        assert_eq!(read!(&reader, Vec::with_capacity(8)).1, b"static");
    });
}

#[test]
fn without_a_runtime_the_asynchronous_form_fails_and_returns_the_buffer() {
    let cid = Runtime::builder()
        .vcpus(1)
        .build()
        .unwrap()
        .block_on(async { upshift::get_cid().unwrap() });
    let (reader, _writer) = io::pipe().unwrap();
    let waker = std::task::Waker::noop();
    let cx = &mut std::task::Context::from_waker(waker);
    let mut call = std::pin::pin!(read!(&reader, vec![7; 4], cid));
    let std::task::Poll::Ready((result, buffer)) = call.as_mut().poll(cx) else {
        panic!("the call was started outside of a runtime");
    };
    assert!(
        result
            .unwrap_err()
            .to_string()
            .contains("no upshift runtime")
    );
    assert_eq!(buffer, [7; 4]);
    let mut call = std::pin::pin!(fsync!(&reader, cid));
    let std::task::Poll::Ready(result) = call.as_mut().poll(cx) else {
        panic!("the call was started outside of a runtime");
    };
    assert!(
        result
            .unwrap_err()
            .to_string()
            .contains("no upshift runtime")
    );
}
