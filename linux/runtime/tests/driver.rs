//! The choice of a runtime's driver. The driver without io_uring does the same work, whether
//! io_uring exists or not.

#[path = "support/child.rs"]
mod child;

use std::cell::Cell;
use std::io::{ErrorKind, Read, Write};
use std::sync::Arc;
use std::time::Duration;

use child::child;
use futures_lite::{AsyncReadExt, AsyncWriteExt};
use upshift::net::{TcpListener, TcpStream, UdpSocket, UnixStream};
use upshift::{Driver, Level, Preemption, Runtime, fs, time};

fn readiness(vcpus: usize) -> Runtime {
    let builder = Runtime::builder().vcpus(vcpus).driver(Driver::Readiness);
    builder.build().unwrap()
}

#[test]
fn the_driver_that_is_asked_for_runs_and_is_shown() {
    let runtime = readiness(1);
    let report = runtime.report();
    assert_eq!(report.driver(), Driver::Readiness);
    assert!(report.gain().is_some() && report.why().contains("program"));
    let metrics = runtime.handle().metrics();
    assert_eq!(metrics.driver, "readiness");
    let text = metrics.prometheus().to_string();
    assert!(text.contains("upshift_driver{driver=\"readiness\"} 1\n"));
    match Runtime::builder().vcpus(1).driver(Driver::Ring).build() {
        Ok(runtime) => assert_eq!(runtime.report().driver(), Driver::Ring),
        Err(error) => println!("skipped: no io_uring to ask for: {error}"),
    }
}

/// Runs a test of this file again, in an environment that selects `driver`. Returns its output.
fn again(test: &str, driver: &str) -> Option<String> {
    if std::env::var_os("UPSHIFT_TEST_CHILD").is_some() {
        return None;
    }
    let output = child(test)
        .env("UPSHIFT_TEST_CHILD", "1")
        .env("UPSHIFT_DRIVER", driver)
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{out}");
    Some(out)
}

#[test]
fn the_environment_decides_where_the_program_does_not() {
    let name = "the_environment_decides_where_the_program_does_not";
    if let Some(out) = again(name, "readiness") {
        assert!(out.contains("1 passed"), "{out}");
        return;
    }
    let runtime = Runtime::builder().vcpus(1).build().unwrap();
    assert_eq!(runtime.report().driver(), Driver::Readiness);
    assert!(runtime.report().why().contains("environment"));
}

#[test]
fn a_word_that_is_no_driver_is_an_error() {
    let name = "a_word_that_is_no_driver_is_an_error";
    if let Some(out) = again(name, "kqueue") {
        assert!(out.contains("1 passed"), "{out}");
        return;
    }
    let error = Runtime::builder().vcpus(1).build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("readiness"), "{error}");
}

/// Takes the right to lock memory and the limit on it from this thread, and those that it starts.
fn locks_at_most(bytes: u64) {
    const IPC_LOCK: u32 = 14;
    let header = [0x2008_0522u32, 0];
    let mut sets = [0u32; 6];
    let limit = libc::rlimit {
        rlim_cur: bytes,
        rlim_max: bytes,
    };
    // SAFETY: pointers to locals of the sizes that version 3 of capabilities and the limit have.
    unsafe {
        assert_eq!(
            libc::syscall(libc::SYS_capget, &raw const header, &raw mut sets),
            0
        );
        // Effective, permitted and inheritable sets of the first 32 capabilities.
        for set in &mut sets[..3] {
            *set &= !(1 << IPC_LOCK);
        }
        assert_eq!(
            libc::syscall(libc::SYS_capset, &raw const header, &raw const sets),
            0
        );
        assert_eq!(libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit), 0);
    }
}

/// A small ring can be created, and those of the vCPUs cannot.
#[test]
fn where_little_memory_may_be_locked_the_open_choice_is_readiness() {
    let name = "where_little_memory_may_be_locked_the_open_choice_is_readiness";
    if let Some(out) = again(name, "auto") {
        assert!(out.contains("1 passed"), "{out}");
        return;
    }
    let by_ring = || Runtime::builder().vcpus(1).driver(Driver::Ring).build();
    if let Err(error) = by_ring() {
        return println!("skipped: no io_uring to ask for: {error}");
    }
    locks_at_most(64 << 10);
    let error = by_ring().unwrap_err();
    assert!(error.to_string().contains("RLIMIT_MEMLOCK"), "{error}");
    for (vcpus, preemption) in [(1, Preemption::Off), (2, Preemption::Preferred)] {
        let builder = Runtime::builder().vcpus(vcpus).preemption(preemption);
        let runtime = builder.build().unwrap();
        assert_eq!(runtime.report().driver(), Driver::Readiness);
        assert!(runtime.report().why().contains("RLIMIT_MEMLOCK"));
        runtime.block_on(time::sleep(Duration::from_millis(1)));
    }
}

/// The memory does not suffice for the stack of a thread.
#[test]
#[cfg_attr(sanitized, ignore = "a sanitizer asks for memory meanwhile")]
fn where_no_thread_can_be_started_a_function_that_blocks_is_an_error() {
    let name = "where_no_thread_can_be_started_a_function_that_blocks_is_an_error";
    if let Some(out) = again(name, "auto") {
        assert!(out.contains("1 passed"), "{out}");
        return;
    }
    let runtime = Runtime::builder().vcpus(1).build().unwrap();
    runtime.block_on(async {
        let token = Arc::new(());
        let function = {
            let token = token.clone();
            move || drop(token)
        };
        let mut before = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        // SAFETY: a pointer to a local.
        let asked = unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut before) };
        assert_eq!(asked, 0);
        let none = libc::rlimit {
            rlim_cur: 1,
            ..before
        };
        // SAFETY: pointers to locals.
        let refused = unsafe {
            assert_eq!(libc::setrlimit(libc::RLIMIT_AS, &raw const none), 0);
            let refused = upshift::try_spawn_blocking(function);
            assert_eq!(libc::setrlimit(libc::RLIMIT_AS, &raw const before), 0);
            refused
        };
        let error = refused.unwrap_err();
        assert_eq!(upshift::errno_of(&error), Some(libc::EAGAIN), "{error}");
        assert!(error.to_string().contains("RLIMIT_NPROC"), "{error}");
        // No future waits for it.
        upshift::yield_now().await;
        assert_eq!(Arc::strong_count(&token), 1);
        let done = upshift::try_spawn_blocking(|| 3).unwrap();
        assert_eq!(done.await.unwrap(), 3);
    });
}

/// A vCPU that is never idle sees arrivals only in its own turns.
#[test]
fn arrivals_are_seen_beside_coroutines_that_are_always_ready() {
    let runtime = readiness(1);
    runtime.block_on(async {
        let done = std::rc::Rc::new(Cell::new(false));
        let seen = done.clone();
        let busy = upshift::spawn_local(
            async move {
                while !seen.get() {
                    upshift::yield_now().await;
                }
            },
            Level::at::<40>(),
        );
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let client = std::thread::spawn(move || {
            let mut stream = std::net::TcpStream::connect(address).unwrap();
            let mut reply = [0; 4];
            for n in 0..50 {
                stream.write_all(&[n; 4]).unwrap();
                stream.read_exact(&mut reply).unwrap();
                assert_eq!(reply, [n; 4]);
            }
        });
        let (mut stream, _) = listener.accept().await.unwrap();
        loop {
            let data = stream.recv().await.unwrap();
            if data.is_empty() {
                break;
            }
            stream.write_all(data.to_vec()).await.0.unwrap();
        }
        client.join().unwrap();
        done.set(true);
        busy.await.unwrap();
    });
}

#[test]
fn an_idle_runtime_makes_no_turns() {
    let runtime = readiness(2);
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let accepts = upshift::spawn(
            async move { listener.accept().await.map(drop) },
            Level::at::<3>(),
        );
        time::sleep(Duration::from_millis(20)).await;
        let enters = || -> u64 {
            let metrics = upshift::Handle::current().unwrap().metrics();
            metrics.vcpus.iter().map(|vcpu| vcpu.ring.enters).sum()
        };
        let before = enters();
        time::sleep(Duration::from_millis(300)).await;
        let turns = enters() - before;
        assert!(turns < 100, "{turns} turns");
        accepts.abort();
    });
}

#[test]
fn files_need_no_more_than_one_thread() {
    let builder = Runtime::builder().vcpus(2).driver(Driver::Readiness);
    let runtime = builder.blocking_threads(1).build().unwrap();
    let folder = std::env::temp_dir().join(format!("upshift-driver-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let within = folder.clone();
    runtime.block_on(async move {
        let all: Vec<_> = (0..20u8)
            .map(|n| {
                let path = within.join(n.to_string());
                let work = async move {
                    fs::write(&path, vec![n; 5000]).await?;
                    fs::read(&path).await
                };
                upshift::spawn(work, Level::new(n).unwrap())
            })
            .collect();
        for (n, one) in all.into_iter().enumerate() {
            assert_eq!(one.await.unwrap().unwrap(), vec![n as u8; 5000]);
        }
    });
    std::fs::remove_dir_all(folder).unwrap();
}

/// An empty buffer is written at once, a read without room returns at once, and neither keeps the
/// connection from its later operations.
#[test]
fn empty_buffers_end_at_once_on_both_drivers() {
    for driver in [Driver::Ring, Driver::Readiness] {
        let builder = Runtime::builder().vcpus(1).driver(driver);
        let Ok(runtime) = builder.build() else {
            println!("skipped: no such driver");
            continue;
        };
        let limit = Duration::from_secs(15);
        runtime.block_on(async {
            macro_rules! ends {
                ($operation:expr) => {
                    match time::timeout(limit, $operation).await {
                        Ok(result) => result,
                        Err(_) => panic!("{driver:?}: {}", stringify!($operation)),
                    }
                };
            }
            let (mut one, mut other) = UnixStream::pair().unwrap();
            assert_eq!(ends!(one.write(Vec::new())).0.unwrap(), 0);
            ends!(one.write_all(Vec::new())).0.unwrap();
            ends!(one.write_all(upshift::RecvBuf::empty())).0.unwrap();
            ends!(one.write_all_vectored(Vec::<Vec<u8>>::new()))
                .0
                .unwrap();
            ends!(one.write_all_vectored(vec![Vec::new(), Vec::new()]))
                .0
                .unwrap();
            assert_eq!(ends!(one.write_vectored(vec![Vec::new()])).0.unwrap(), 0);
            assert_eq!(ends!(other.read(Vec::new())).0.unwrap(), 0);
            assert_eq!(ends!(AsyncReadExt::read(&mut other, &mut [])).unwrap(), 0);
            ends!(AsyncReadExt::read_exact(&mut other, &mut [])).unwrap();
            assert_eq!(ends!(AsyncWriteExt::write(&mut one, &[])).unwrap(), 0);
            ends!(AsyncWriteExt::write_all(&mut one, &[])).unwrap();
            ends!(one.write_all(b"pong".to_vec())).0.unwrap();
            assert_eq!(&*ends!(other.recv()).unwrap(), b"pong");
            // With the stream of receive buffers armed.
            assert_eq!(ends!(other.read(Vec::new())).0.unwrap(), 0);
            assert_eq!(ends!(AsyncReadExt::read(&mut other, &mut [])).unwrap(), 0);

            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let to = listener.local_addr().unwrap();
            let mut client = ends!(TcpStream::connect(to)).unwrap();
            let (mut peer, _) = ends!(listener.accept()).unwrap();
            assert_eq!(ends!(client.write(Vec::new())).0.unwrap(), 0);
            ends!(client.write_all(Vec::new())).0.unwrap();
            assert_eq!(ends!(peer.read(Vec::new())).0.unwrap(), 0);
            ends!(client.write_all(b"pong".to_vec())).0.unwrap();
            assert_eq!(&*ends!(peer.recv()).unwrap(), b"pong");
            assert_eq!(ends!(peer.read(Vec::new())).0.unwrap(), 0);

            let here = UdpSocket::bind("127.0.0.1:0").unwrap();
            let to = here.local_addr().unwrap();
            assert_eq!(ends!(here.send_to(&[], to)).unwrap(), 0);
            assert_eq!(ends!(here.recv_from(&mut [0; 8])).unwrap(), (0, to));
            assert_eq!(ends!(here.send_to(b"lost", to)).unwrap(), 4);
            assert_eq!(ends!(here.recv_from(&mut [])).unwrap(), (0, to));

            let name = format!("upshift-empty-{}-{driver:?}", std::process::id());
            let path = std::env::temp_dir().join(name);
            let mut options = fs::OpenOptions::new();
            options.read(true).write(true).create_new(true);
            let file = ends!(options.open(&path)).unwrap();
            std::fs::remove_file(&path).unwrap();
            assert_eq!(ends!(file.write_at(Vec::new(), 5)).0.unwrap(), 0);
            ends!(file.write_all_at(Vec::new(), 5)).0.unwrap();
            assert_eq!(ends!(file.len()).unwrap(), 0);
            ends!(file.write_all_at(b"pong".to_vec(), 0)).0.unwrap();
            assert_eq!(ends!(file.read_at(Vec::new(), 0)).0.unwrap(), 0);
            let none = Vec::<Vec<u8>>::new();
            assert_eq!(ends!(file.read_vectored_at(none, 0)).0.unwrap(), 0);
            let empty = vec![Vec::new()];
            assert_eq!(ends!(file.write_vectored_at(empty, 0)).0.unwrap(), 0);
        });
    }
}
