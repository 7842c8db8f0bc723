//! Tests that I/O continues while the thread that owns the I/O driver is suspended.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream as StdStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use upshift::net::{TcpListener, TcpStream};
use upshift::{Level, Runtime, time};

use crate::{runtime, spin_until};

async fn echo(mut stream: TcpStream) -> std::io::Result<()> {
    loop {
        let data = stream.recv().await?;
        if data.is_empty() {
            return Ok(());
        }
        stream.write_all(data.to_vec()).await.0?;
    }
}

/// Exchanges `messages` messages with an echo server. Returns the duration of the slowest exchange.
fn exchange_messages(address: SocketAddr, messages: usize) -> Duration {
    let mut stream = StdStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(crate::LIMIT)).unwrap();
    let mut slowest = Duration::ZERO;
    for n in 0..messages {
        let (message, mut reply) = ([n as u8; 100], [0; 100]);
        let began = Instant::now();
        stream.write_all(&message).unwrap();
        stream.read_exact(&mut reply).unwrap();
        slowest = slowest.max(began.elapsed());
        assert_eq!(message, reply);
    }
    slowest
}

#[test]
fn connections_are_served_beside_a_poll_that_does_not_return() {
    let Some(runtime) = runtime() else { return };
    let flag = Arc::new(AtomicBool::new(false));
    // The thread is started here, because a thread that a coroutine starts inherits the CPU of the
    // vCPU, which is busy.
    let (address_sender, address_receiver) = mpsc::channel::<SocketAddr>();
    let setter = flag.clone();
    let client = std::thread::spawn(move || {
        let address = address_receiver.recv().unwrap();
        let clients: Vec<_> = (0..6)
            .map(|_| std::thread::spawn(move || exchange_messages(address, 200)))
            .collect();
        for client in clients {
            client.join().unwrap();
        }
        setter.store(true, Ordering::Relaxed);
    });
    let in_time = runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        // At these levels no buffers exist yet, so the ring's owner has to create them.
        let accept = upshift::spawn(
            async move {
                for n in 0..6u8 {
                    let (stream, _) = listener.accept().await.unwrap();
                    let level = Level::new(3 + n % 3).unwrap();
                    upshift::spawn(async move { echo(stream).await.unwrap() }, level).detach();
                }
            },
            Level::at::<2>(),
        );
        let is_set = flag.clone();
        let long = upshift::spawn(async move { spin_until(&is_set) }, Level::at::<40>());
        time::sleep(Duration::from_millis(2)).await;
        address_sender.send(address).unwrap();
        let in_time = long.await.unwrap();
        accept.await.unwrap();
        in_time
    });
    client.join().unwrap();
    assert!(in_time);
    let stats = runtime.handle().preemption_stats();
    // The owner makes system calls only with a ring; with readiness, each thread makes its own.
    let has_ring = runtime.report().driver() == upshift::Driver::Ring;
    assert_eq!(
        stats.services > 0,
        has_ring,
        "calls that the suspended owner made: {stats:?}"
    );
}

#[test]
fn files_are_read_and_written_beside_a_poll_that_does_not_return() {
    let Some(runtime) = runtime() else { return };
    read_and_write_files_beside_an_endless_poll(&runtime);
}

/// When other threads request system calls from the thread that created the ring, that thread has
/// to wait for the CPU, and continues its poll as soon as it has the CPU. The files must be read
/// and written nevertheless.
#[test]
fn files_are_read_and_written_beside_programs_that_want_the_cpu() {
    let Some(runtime) = runtime() else { return };
    let stop = AtomicBool::new(false);
    let cpu = runtime.block_on(async {
        // SAFETY: `sched_getcpu` takes no pointer.
        let current_cpu = async { unsafe { libc::sched_getcpu() } };
        upshift::spawn(current_cpu, Level::at::<1>()).await
    });
    let cpu = cpu.unwrap() as usize;
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                // SAFETY: zeroes are a valid `cpu_set_t`, and `set` outlives the call.
                unsafe {
                    let mut set: libc::cpu_set_t = std::mem::zeroed();
                    libc::CPU_SET(cpu, &mut set);
                    libc::sched_setaffinity(0, size_of_val(&set), &raw const set);
                }
                spin_until(&stop);
            });
        }
        for _ in 0..3 {
            read_and_write_files_beside_an_endless_poll(&runtime);
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// Reads and writes a file 20 times while a less urgent poll spins, and asserts that the poll was
/// suspended for the reads and writes.
fn read_and_write_files_beside_an_endless_poll(runtime: &Runtime) {
    let flag = Arc::new(AtomicBool::new(false));
    let path = std::env::temp_dir().join(format!("upshift-preempt-{}", std::process::id()));
    let in_time = runtime.block_on(async {
        let is_set = flag.clone();
        let long = upshift::spawn(async move { spin_until(&is_set) }, Level::at::<40>());
        time::sleep(Duration::from_millis(2)).await;
        let (setter, file) = (flag.clone(), path.clone());
        let work = async move {
            for round in 0..20u8 {
                let open = upshift::fs::File::create(&file).await.unwrap();
                let content = vec![round; 5000];
                open.write_all_at(content, 0).await.0.unwrap();
                let open = upshift::fs::File::open(&file).await.unwrap();
                let (read, content) = open.read_at(vec![0; 6000], 0).await;
                assert_eq!(read.unwrap(), 5000);
                assert!(content[..5000].iter().all(|byte| *byte == round));
            }
            setter.store(true, Ordering::Relaxed);
        };
        upshift::spawn(work, Level::at::<20>()).await.unwrap();
        long.await.unwrap()
    });
    let _ = std::fs::remove_file(&path);
    assert!(in_time);
}

#[test]
fn operations_that_a_suspended_poll_drops_and_starts_are_neither_lost_nor_mixed_up() {
    let Some(runtime) = runtime() else { return };
    let handle = runtime.handle();
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        upshift::spawn(
            async move {
                loop {
                    let Ok((stream, _)) = listener.accept().await else {
                        return;
                    };
                    upshift::spawn(async move { drop(echo(stream).await) }, Level::at::<30>())
                        .detach();
                }
            },
            Level::at::<30>(),
        )
        .detach();
        // Whether a poll of 0.7 ms is suspended depends on the machine, so the test repeats until a
        // poll was suspended.
        for _ in 0..50 {
            let clients: Vec<_> = (0..8)
                .map(|n| upshift::spawn(run_client(address, n), Level::at::<30>()))
                .collect();
            for client in clients {
                client.await.unwrap();
            }
            if handle.preemption_stats().suspensions > 0 {
                return;
            }
        }
        panic!("no poll was suspended");
    });
}

/// Runs a client of the echo server, some of whose polls are long, with operations in flight or
/// dropped at any time.
async fn run_client(address: SocketAddr, n: u8) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    for round in 0..30u8 {
        let message = vec![n ^ round; 300];
        let limit = Duration::from_micros(5);
        let _ = time::timeout(limit, time::sleep(Duration::from_secs(1))).await;
        stream.write_all(message.clone()).await.0.unwrap();
        let mut reply = Vec::new();
        while reply.len() < message.len() {
            let data = stream.recv().await.unwrap();
            assert!(!data.is_empty());
            // Every third poll is long, and holds the buffer.
            let long = round % 3 == 0;
            crate::burn(Duration::from_micros(if long { 700 } else { 5 }));
            reply.extend_from_slice(&data);
        }
        assert_eq!(reply, message);
    }
}
