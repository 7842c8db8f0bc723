//! The operations whose instructions are counted. Each runs on a runtime with one vCPU (worker
//! thread) and default settings, except for spinning, reaping of completions, and warnings.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::hint::black_box;
use std::io::{self, Read, Write};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use upshift::io::{AsyncReadExt, AsyncWriteExt};
use upshift::net::{TcpListener, TcpStream};
use upshift::sync::{mpsc, oneshot};
use upshift::{Level, Priority, Runtime, time};
use upshift_serve::{Config, Server};

pub(crate) struct Operation {
    pub(crate) name: &'static str,
    pub(crate) description: &'static str,
    /// Number of operations in the shorter of the two runs.
    pub(crate) times: u32,
    pub(crate) run: fn(u32) -> io::Result<()>,
}

macro_rules! operations {
    ($($name:literal, $description:literal, $times:literal, $run:path;)*) => {
        [$(Operation { name: $name, description: $description, times: $times, run: $run }),*]
    };
}

pub(crate) const OPERATIONS: [Operation; 14] = operations! {
    "yield-alone", "a coroutine yields, and nothing else is ready", 20_000, yield_alone;
    "yield", "one of eight coroutines of a level yields", 20_000, yield_among_equals;
    "spawn-join", "a coroutine is spawned, runs and is awaited", 5_000, spawn_join;
    "spawn-local", "a pinned coroutine is spawned, runs and is awaited", 5_000, spawn_local_join;
    "spawn-batch", "one of 64 coroutines is spawned and later awaited", 5_000, spawn_batch;
    "wake", "a coroutine wakes another one, which is polled", 10_000, wake;
    "wake-across", "a coroutine is woken by another thread, arrives, and is polled", 12_800, wake_across;
    "hop", "a value goes through a channel to another coroutine", 10_000, hop;
    "oneshot", "a channel for one value is made and used", 5_000, one_value;
    "level", "a coroutine that is ready gets another level", 10_000, level;
    "timer", "a timer is armed and dropped", 10_000, timer;
    "echo", "a request and its reply over TCP, both ends", 500, echo;
    "request", "like echo, but with requests in buffers of the ring, as in a server", 500, request;
    "serve", "a GET of `/plaintext` to `upshift serve` and its reply, both ends", 300, serve;
};

fn on_one_vcpu<F: Future<Output = io::Result<()>>>(main: F) -> io::Result<()> {
    // These settings remove instructions whose number depends on the clock: those for spinning, for
    // reaping the ring (under callgrind, after each poll), and for the looks of the watchdog.
    let builder = Runtime::builder()
        .vcpus(1)
        .spin(Duration::ZERO)
        .warnings(false);
    let runtime = builder.reap_interval(Duration::from_secs(1)).build()?;
    runtime.block_on(main)
}

fn yield_alone(times: u32) -> io::Result<()> {
    on_one_vcpu(async {
        for _ in 0..times {
            upshift::yield_now().await;
        }
        Ok(())
    })
}

fn yield_among_equals(times: u32) -> io::Result<()> {
    on_one_vcpu(async move {
        let handles: Vec<_> = (0..8)
            .map(|_| {
                let yielding = async move {
                    for _ in 0..times / 8 {
                        upshift::yield_now().await;
                    }
                };
                upshift::spawn(yielding, Level::at::<20>())
            })
            .collect();
        for handle in handles {
            join_result(handle.await)?;
        }
        Ok(())
    })
}

fn spawn_join(times: u32) -> io::Result<()> {
    on_one_vcpu(async {
        for n in 0..times {
            let handle = upshift::spawn(async move { black_box(n) }, Priority::Inherit);
            join_result(handle.await)?;
        }
        Ok(())
    })
}

fn spawn_local_join(times: u32) -> io::Result<()> {
    on_one_vcpu(async {
        let count = Rc::new(RefCell::new(0));
        for _ in 0..times {
            let count = count.clone();
            let handle =
                upshift::spawn_local(async move { *count.borrow_mut() += 1 }, Priority::Inherit);
            join_result(handle.await)?;
        }
        Ok(())
    })
}

fn spawn_batch(times: u32) -> io::Result<()> {
    on_one_vcpu(async {
        let mut handles = Vec::with_capacity(64);
        for n in 0..times {
            handles.push(upshift::spawn(
                async move { black_box(n) },
                Priority::Inherit,
            ));
            if handles.len() == 64 {
                for handle in handles.drain(..) {
                    join_result(handle.await)?;
                }
            }
        }
        for handle in handles {
            join_result(handle.await)?;
        }
        Ok(())
    })
}

/// A future that waits for a number of wakes.
struct Sleeper {
    wakes: u32,
    waker: Rc<RefCell<Option<Waker>>>,
}

impl Future for Sleeper {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.wakes == 0 {
            return Poll::Ready(());
        }
        self.wakes -= 1;
        let mut waker = self.waker.borrow_mut();
        match &mut *waker {
            Some(waker) => waker.clone_from(cx.waker()),
            None => *waker = Some(cx.waker().clone()),
        }
        drop(waker);
        Poll::Pending
    }
}

fn wake(times: u32) -> io::Result<()> {
    on_one_vcpu(async move {
        let waker = Rc::new(RefCell::new(None::<Waker>));
        let sleeper = Sleeper {
            wakes: times,
            waker: waker.clone(),
        };
        let sleeper = upshift::spawn_local(sleeper, Level::at::<10>());
        while !sleeper.is_finished() {
            if let Some(waker) = &*waker.borrow() {
                waker.wake_by_ref();
            }
            upshift::yield_now().await;
        }
        join_result(sleeper.await)
    })
}

/// In each round another thread wakes 64 coroutines, while a poll waits for that thread.
fn wake_across(times: u32) -> io::Result<()> {
    const WAITING: u32 = 64;
    let rounds = times / WAITING;
    on_one_vcpu(async move {
        let wakers = Arc::new(Mutex::new(Vec::with_capacity(WAITING as usize)));
        let handles: Vec<_> = (0..WAITING)
            .map(|_| {
                let (wakers, mut polls) = (wakers.clone(), 0);
                let wait = poll_fn(move |cx: &mut Context<'_>| {
                    if polls == 0 {
                        let mut wakers = wakers.lock().expect("no panic while locked");
                        wakers.push(cx.waker().clone());
                    }
                    polls += 1;
                    if polls > rounds {
                        Poll::Ready(())
                    } else {
                        Poll::Pending
                    }
                });
                upshift::spawn(wait, Priority::Inherit)
            })
            .collect();
        upshift::yield_now().await;
        // Pipes synchronize the threads, because a waiter for a lock of the standard library first
        // spins for a varying time.
        let (mut begin_reader, mut begin_writer) = io::pipe()?;
        let (mut end_reader, mut end_writer) = io::pipe()?;
        let wakers = std::mem::take(&mut *wakers.lock().expect("no panic while locked"));
        let waking_thread = std::thread::spawn(move || {
            while begin_reader.read(&mut [0])? != 0 {
                wakers.iter().for_each(Waker::wake_by_ref);
                end_writer.write_all(&[0])?;
            }
            io::Result::Ok(())
        });
        for _ in 0..rounds {
            begin_writer.write_all(&[0])?;
            end_reader.read_exact(&mut [0])?;
            upshift::yield_now().await;
        }
        drop(begin_writer);
        waking_thread
            .join()
            .map_err(|_| io::Error::other("a waker panicked"))??;
        for handle in handles {
            join_result(handle.await)?;
        }
        Ok(())
    })
}

fn hop(times: u32) -> io::Result<()> {
    on_one_vcpu(async move {
        let (sender, mut receiver) = mpsc::channel(1);
        let send = async move {
            for n in 0..times {
                if sender.send(n).await.is_err() {
                    break;
                }
            }
        };
        let sending = upshift::spawn(send, Priority::Inherit);
        while let Some(value) = receiver.recv().await {
            black_box(value);
        }
        join_result(sending.await)
    })
}

fn one_value(times: u32) -> io::Result<()> {
    on_one_vcpu(async move {
        for n in 0..times {
            let (sender, receiver) = oneshot::channel();
            let _ = sender.send(n);
            black_box(receiver.await.ok());
        }
        Ok(())
    })
}

fn level(times: u32) -> io::Result<()> {
    on_one_vcpu(async move {
        let ready = upshift::spawn(async {}, Level::at::<40>());
        let levels = [Level::at::<41>(), Level::at::<42>()];
        for n in 0..times {
            upshift::reprio(ready.id(), levels[n as usize % 2]).map_err(io::Error::other)?;
        }
        join_result(ready.await)
    })
}

fn timer(times: u32) -> io::Result<()> {
    on_one_vcpu(async move {
        for _ in 0..times {
            let mut sleep = pin!(time::sleep(Duration::from_secs(60)));
            let mut cx = Context::from_waker(Waker::noop());
            let _ = black_box(sleep.as_mut().poll(&mut cx));
        }
        Ok(())
    })
}

fn echo(times: u32) -> io::Result<()> {
    on_one_vcpu(async move {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let server = upshift::spawn(
            async move {
                let (mut stream, _) = listener.accept().await?;
                let mut request = [0; 64];
                while stream.read_exact(&mut request).await.is_ok() {
                    AsyncWriteExt::write_all(&mut stream, &request).await?;
                }
                io::Result::Ok(())
            },
            Priority::Inherit,
        );
        let mut stream = TcpStream::connect(address).await?;
        let mut reply = [7; 64];
        for _ in 0..times {
            AsyncWriteExt::write_all(&mut stream, &reply).await?;
            stream.read_exact(&mut reply).await?;
        }
        drop(stream);
        server.await.map_err(io::Error::other)?
    })
}

/// Like `echo`, but with the calls that a server makes. Requests are received into buffers of the
/// runtime, and replies are written through io_uring.
fn request(times: u32) -> io::Result<()> {
    static REPLY: [u8; 64] = [7; 64];
    on_one_vcpu(async move {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let server = upshift::spawn(
            async move {
                let (mut stream, _) = listener.accept().await?;
                while !stream.recv().await?.is_empty() {
                    stream.write_all(REPLY.as_slice()).await.0?;
                }
                io::Result::Ok(())
            },
            Priority::Inherit,
        );
        let mut stream = TcpStream::connect(address).await?;
        for _ in 0..times {
            stream.write_all(REPLY.as_slice()).await.0?;
            black_box(stream.recv().await?);
        }
        drop(stream);
        server.await.map_err(io::Error::other)?
    })
}

/// Like `request`, with the server of `upshift serve`. The request is not for a file, because
/// Valgrind 3.19 does not support `openat2`.
fn serve(times: u32) -> io::Result<()> {
    static GET: &[u8] = b"GET /plaintext HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nUser-Agent: counts\r\nAccept: */*\r\n\r\n";
    let config = Config {
        listen: vec!["127.0.0.1:0".parse().map_err(io::Error::other)?],
        ..Config::default()
    };
    on_one_vcpu(async move {
        let server = Server::bind(config).map_err(io::Error::other)?;
        let address = server.addresses()[0];
        let server = server.start().map_err(io::Error::other)?;
        let control = server.control();
        let server = upshift::spawn(server.run(), Priority::Inherit);
        let mut stream = TcpStream::connect(address).await?;
        for _ in 0..times {
            stream.write_all(GET).await.0?;
            let reply = stream.recv().await?;
            // Head and body are sent together, so one call receives the whole reply.
            if !reply.starts_with(b"HTTP/1.1 200") || !reply.ends_with(b"World!") {
                return Err(io::Error::other("unexpected reply to the GET"));
            }
        }
        drop(stream);
        control.drain();
        server.await.map(drop).map_err(io::Error::other)
    })
}

/// Converts the result of a join, without its value.
fn join_result<T, E: std::error::Error + Send + Sync + 'static>(
    result: Result<T, E>,
) -> io::Result<()> {
    result.map(drop).map_err(io::Error::other)
}
