//! Tests of how a runtime chooses its I/O driver (`Driver::Ring`, io_uring, or `Driver::Readiness`,
//! epoll), and of the epoll driver, which is tested even where io_uring is available.

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

fn readiness_runtime(vcpus: usize) -> Runtime {
    let builder = Runtime::builder().vcpus(vcpus).driver(Driver::Readiness);
    builder.build().unwrap()
}

#[test]
fn the_requested_driver_is_used_and_reported() {
    let runtime = readiness_runtime(1);
    let report = runtime.report();
    assert_eq!(report.driver(), Driver::Readiness);
    assert!(report.gain().is_some() && report.why().contains("program"));
    let metrics = runtime.handle().metrics();
    assert_eq!(metrics.driver, "readiness");
    let text = metrics.prometheus().to_string();
    assert!(text.contains("upshift_driver{driver=\"readiness\"} 1\n"));
    match Runtime::builder().vcpus(1).driver(Driver::Ring).build() {
        Ok(runtime) => assert_eq!(runtime.report().driver(), Driver::Ring),
        Err(error) => println!("skipped: io_uring is not available: {error}"),
    }
}

/// Runs a test of this file in a child process whose environment selects `driver`. Returns its
/// output, or `None` in the child.
fn run_in_child(test: &str, driver: &str) -> Option<String> {
    if std::env::var_os("UPSHIFT_TEST_CHILD").is_some() {
        return None;
    }
    let output = child(test)
        .env("UPSHIFT_TEST_CHILD", "1")
        .env("UPSHIFT_DRIVER", driver)
        .output()
        .unwrap();
    let output_text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{output_text}");
    Some(output_text)
}

#[test]
fn the_environment_selects_the_driver_if_the_program_does_not() {
    let name = "the_environment_selects_the_driver_if_the_program_does_not";
    if let Some(output_text) = run_in_child(name, "readiness") {
        assert!(output_text.contains("1 passed"), "{output_text}");
        return;
    }
    let runtime = Runtime::builder().vcpus(1).build().unwrap();
    assert_eq!(runtime.report().driver(), Driver::Readiness);
    assert!(runtime.report().why().contains("environment"));
}

#[test]
fn an_unknown_driver_is_an_error() {
    let name = "an_unknown_driver_is_an_error";
    if let Some(output_text) = run_in_child(name, "kqueue") {
        assert!(output_text.contains("1 passed"), "{output_text}");
        return;
    }
    let error = Runtime::builder().vcpus(1).build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("readiness"), "{error}");
}

/// Removes CAP_IPC_LOCK from this thread and limits the memory that it may lock to `bytes`. Threads
/// that this thread starts inherit both.
fn limit_locked_memory(bytes: u64) {
    const IPC_LOCK: u32 = 14;
    let header = [0x2008_0522u32, 0];
    let mut sets = [0u32; 6];
    let limit = libc::rlimit {
        rlim_cur: bytes,
        rlim_max: bytes,
    };
    // SAFETY: the pointers are to locals of the sizes that `capget` (version 3) and the limit use.
    unsafe {
        assert_eq!(
            libc::syscall(libc::SYS_capget, &raw const header, &raw mut sets),
            0
        );
        // The first three words are the effective, permitted and inheritable sets of the first 32
        // capabilities.
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

/// The limit on locked memory suffices for a small ring, but not for the rings of the vCPUs.
#[test]
fn with_little_lockable_memory_the_default_driver_is_readiness() {
    let name = "with_little_lockable_memory_the_default_driver_is_readiness";
    if let Some(output_text) = run_in_child(name, "auto") {
        assert!(output_text.contains("1 passed"), "{output_text}");
        return;
    }
    let build_with_ring = || Runtime::builder().vcpus(1).driver(Driver::Ring).build();
    if let Err(error) = build_with_ring() {
        return println!("skipped: io_uring is not available: {error}");
    }
    limit_locked_memory(64 << 10);
    let error = build_with_ring().unwrap_err();
    assert!(error.to_string().contains("RLIMIT_MEMLOCK"), "{error}");
    for (vcpus, preemption) in [(1, Preemption::Off), (2, Preemption::Preferred)] {
        let builder = Runtime::builder().vcpus(vcpus).preemption(preemption);
        let runtime = builder.build().unwrap();
        assert_eq!(runtime.report().driver(), Driver::Readiness);
        assert!(runtime.report().why().contains("RLIMIT_MEMLOCK"));
        runtime.block_on(time::sleep(Duration::from_millis(1)));
    }
}

/// While the function is spawned, the address space is limited so that the stack of a thread cannot
/// be mapped.
#[test]
#[cfg_attr(
    sanitized,
    ignore = "a sanitizer allocates memory while the address space is limited"
)]
fn a_blocking_function_for_which_no_thread_can_be_started_is_an_error() {
    let name = "a_blocking_function_for_which_no_thread_can_be_started_is_an_error";
    if let Some(output_text) = run_in_child(name, "auto") {
        assert!(output_text.contains("1 passed"), "{output_text}");
        return;
    }
    let runtime = Runtime::builder().vcpus(1).build().unwrap();
    runtime.block_on(async {
        let token = Arc::new(());
        let function = {
            let token = token.clone();
            move || drop(token)
        };
        let mut old_limit = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        // SAFETY: `old_limit` is a live local.
        let result = unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut old_limit) };
        assert_eq!(result, 0);
        let tiny_limit = libc::rlimit {
            rlim_cur: 1,
            ..old_limit
        };
        // SAFETY: the pointers are to live locals.
        let spawned = unsafe {
            assert_eq!(libc::setrlimit(libc::RLIMIT_AS, &raw const tiny_limit), 0);
            let spawned = upshift::try_spawn_blocking(function);
            assert_eq!(libc::setrlimit(libc::RLIMIT_AS, &raw const old_limit), 0);
            spawned
        };
        let error = spawned.unwrap_err();
        assert_eq!(upshift::errno_of(&error), Some(libc::EAGAIN), "{error}");
        assert!(error.to_string().contains("RLIMIT_NPROC"), "{error}");
        // After the yield, no queue holds the function.
        upshift::yield_now().await;
        assert_eq!(Arc::strong_count(&token), 1);
        let done = upshift::try_spawn_blocking(|| 3).unwrap();
        assert_eq!(done.await.unwrap(), 3);
    });
}

/// A vCPU that is never idle checks for I/O events only between polls.
#[test]
fn io_events_are_noticed_while_a_coroutine_is_always_ready() {
    let runtime = readiness_runtime(1);
    runtime.block_on(async {
        let done = std::rc::Rc::new(Cell::new(false));
        let is_done = done.clone();
        let busy = upshift::spawn_local(
            async move {
                while !is_done.get() {
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
fn an_idle_runtime_rarely_enters_the_kernel() {
    let runtime = readiness_runtime(2);
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
        let new_enters = enters() - before;
        // If both vCPUs entered the kernel every millisecond, the number would be 600.
        assert!(
            new_enters < 100,
            "{new_enters} calls of the driver in 300 ms"
        );
        accepts.abort();
    });
}

#[test]
fn file_operations_work_with_one_blocking_thread() {
    let builder = Runtime::builder().vcpus(2).driver(Driver::Readiness);
    let runtime = builder.blocking_threads(1).build().unwrap();
    let folder = std::env::temp_dir().join(format!("upshift-driver-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let task_folder = folder.clone();
    runtime.block_on(async move {
        let tasks: Vec<_> = (0..20u8)
            .map(|n| {
                let path = task_folder.join(n.to_string());
                let work = async move {
                    fs::write(&path, vec![n; 5000]).await?;
                    fs::read(&path).await
                };
                upshift::spawn(work, Level::new(n).unwrap())
            })
            .collect();
        for (n, task) in tasks.into_iter().enumerate() {
            assert_eq!(task.await.unwrap().unwrap(), vec![n as u8; 5000]);
        }
    });
    std::fs::remove_dir_all(folder).unwrap();
}

/// An empty buffer is written at once, and a read into an empty buffer returns at once. Neither
/// prevents later operations on the connection.
#[test]
fn operations_with_empty_buffers_end_at_once_on_both_drivers() {
    for driver in [Driver::Ring, Driver::Readiness] {
        let builder = Runtime::builder().vcpus(1).driver(driver);
        let Ok(runtime) = builder.build() else {
            println!("skipped: the driver is not available");
            continue;
        };
        let limit = Duration::from_secs(15);
        runtime.block_on(async {
            macro_rules! await_with_limit {
                ($operation:expr) => {
                    match time::timeout(limit, $operation).await {
                        Ok(result) => result,
                        Err(_) => panic!("{driver:?}: {}", stringify!($operation)),
                    }
                };
            }
            let (mut one, mut other) = UnixStream::pair().unwrap();
            assert_eq!(await_with_limit!(one.write(Vec::new())).0.unwrap(), 0);
            await_with_limit!(one.write_all(Vec::new())).0.unwrap();
            await_with_limit!(one.write_all(upshift::RecvBuf::empty()))
                .0
                .unwrap();
            await_with_limit!(one.write_all_vectored(Vec::<Vec<u8>>::new()))
                .0
                .unwrap();
            await_with_limit!(one.write_all_vectored(vec![Vec::new(), Vec::new()]))
                .0
                .unwrap();
            assert_eq!(
                await_with_limit!(one.write_vectored(vec![Vec::new()]))
                    .0
                    .unwrap(),
                0
            );
            assert_eq!(await_with_limit!(other.read(Vec::new())).0.unwrap(), 0);
            assert_eq!(
                await_with_limit!(AsyncReadExt::read(&mut other, &mut [])).unwrap(),
                0
            );
            await_with_limit!(AsyncReadExt::read_exact(&mut other, &mut [])).unwrap();
            assert_eq!(
                await_with_limit!(AsyncWriteExt::write(&mut one, &[])).unwrap(),
                0
            );
            await_with_limit!(AsyncWriteExt::write_all(&mut one, &[])).unwrap();
            await_with_limit!(one.write_all(b"pong".to_vec()))
                .0
                .unwrap();
            assert_eq!(&*await_with_limit!(other.recv()).unwrap(), b"pong");
            // The reads are repeated while the multishot receive is armed.
            assert_eq!(await_with_limit!(other.read(Vec::new())).0.unwrap(), 0);
            assert_eq!(
                await_with_limit!(AsyncReadExt::read(&mut other, &mut [])).unwrap(),
                0
            );

            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let to = listener.local_addr().unwrap();
            let mut client = await_with_limit!(TcpStream::connect(to)).unwrap();
            let (mut peer, _) = await_with_limit!(listener.accept()).unwrap();
            assert_eq!(await_with_limit!(client.write(Vec::new())).0.unwrap(), 0);
            await_with_limit!(client.write_all(Vec::new())).0.unwrap();
            assert_eq!(await_with_limit!(peer.read(Vec::new())).0.unwrap(), 0);
            await_with_limit!(client.write_all(b"pong".to_vec()))
                .0
                .unwrap();
            assert_eq!(&*await_with_limit!(peer.recv()).unwrap(), b"pong");
            assert_eq!(await_with_limit!(peer.read(Vec::new())).0.unwrap(), 0);

            let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
            let to = udp.local_addr().unwrap();
            assert_eq!(await_with_limit!(udp.send_to(&[], to)).unwrap(), 0);
            assert_eq!(
                await_with_limit!(udp.recv_from(&mut [0; 8])).unwrap(),
                (0, to)
            );
            assert_eq!(await_with_limit!(udp.send_to(b"lost", to)).unwrap(), 4);
            assert_eq!(await_with_limit!(udp.recv_from(&mut [])).unwrap(), (0, to));

            let name = format!("upshift-empty-{}-{driver:?}", std::process::id());
            let path = std::env::temp_dir().join(name);
            let mut options = fs::OpenOptions::new();
            options.read(true).write(true).create_new(true);
            let file = await_with_limit!(options.open(&path)).unwrap();
            std::fs::remove_file(&path).unwrap();
            assert_eq!(
                await_with_limit!(file.write_at(Vec::new(), 5)).0.unwrap(),
                0
            );
            await_with_limit!(file.write_all_at(Vec::new(), 5))
                .0
                .unwrap();
            assert_eq!(await_with_limit!(file.len()).unwrap(), 0);
            await_with_limit!(file.write_all_at(b"pong".to_vec(), 0))
                .0
                .unwrap();
            assert_eq!(await_with_limit!(file.read_at(Vec::new(), 0)).0.unwrap(), 0);
            let none = Vec::<Vec<u8>>::new();
            assert_eq!(
                await_with_limit!(file.read_vectored_at(none, 0)).0.unwrap(),
                0
            );
            let empty = vec![Vec::new()];
            assert_eq!(
                await_with_limit!(file.write_vectored_at(empty, 0))
                    .0
                    .unwrap(),
                0
            );
        });
    }
}
