//! A ring that another thread watches, and whose owner changes.

use std::future::Future;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use upshift_ring::{Config, DeferredCall, Driver, Fd, Mode, Proxy, Ring, RingWatch, op};

/// Returns whether the eventfd is signalled within `millis` milliseconds.
fn rings(watch: &RingWatch, millis: i32) -> bool {
    let mut fd = libc::pollfd {
        fd: watch.raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: a pointer to one local.
    unsafe { libc::poll(&raw mut fd, 1, millis) == 1 }
}

fn ring() -> Option<Ring> {
    let ring = Ring::new(Config::default()).expect("a ring");
    if ring.reports_arrivals() {
        Some(ring)
    } else {
        let _ = writeln!(
            std::io::stderr(),
            "skipped: the kernel has no deferred task work"
        );
        None
    }
}

fn finish<F: Future>(ring: &Ring, future: F) -> F::Output {
    let mut future = pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        ring.wait(None).unwrap();
        ring.reap();
    }
}

#[test]
fn an_arrival_rings_while_the_owner_is_busy_unless_masked() {
    let Some(ring) = ring() else { return };
    let watch = ring.watch().unwrap();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let mut stream = ring.recv_multi(Fd::new(ours), 7);
    let mut cx = Context::from_waker(Waker::noop());
    assert!(stream.poll_next(&mut cx).is_pending());
    ring.submit().unwrap();
    for masked in [true, false, true, false] {
        if masked {
            watch.mask();
        } else {
            watch.unmask();
        }
        assert!(!watch.has_arrivals());
        theirs.write_all(b"x").unwrap();
        assert_eq!(rings(&watch, if masked { 20 } else { 20_000 }), !masked);
        // Masked or not, arrivals are visible.
        let began = std::time::Instant::now();
        while !watch.has_arrivals() && began.elapsed().as_secs() < 20 {
            std::thread::yield_now();
        }
        assert!(watch.has_arrivals());
        watch.clear();
        watch.mask();
        let data = finish(&ring, stream.next()).unwrap();
        assert_eq!(&*data, b"x");
    }
}

#[test]
fn any_thread_may_notify_and_the_watch_outlives_the_ring() {
    let Some(ring) = ring() else { return };
    let watch = ring.watch().unwrap();
    let other = watch.clone();
    std::thread::spawn(move || other.notify()).join().unwrap();
    assert!(rings(&watch, 0));
    watch.clear();
    assert!(!rings(&watch, 0));
    drop(ring);
    watch.unmask();
    assert!(!watch.has_arrivals());
    watch.notify();
    assert!(rings(&watch, 0));
}

#[test]
fn the_levels_in_flight_are_those_of_uncompleted_operations() {
    let Some(ring) = ring() else { return };
    let watch = ring.watch().unwrap();
    let levels = |expected: &[u8]| {
        let bits = expected.iter().fold(0, |all, level| all | 1 << level);
        assert_eq!(watch.levels_in_flight(), bits);
    };
    levels(&[]);
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let ours = Fd::new(ours);
    let mut stream = ring.recv_multi(ours.clone(), 9);
    let mut cx = Context::from_waker(Waker::noop());
    assert!(stream.poll_next(&mut cx).is_pending());
    let first = ring.start(op::Nop::new(), 3);
    let second = ring.start(op::Nop::new(), 3);
    levels(&[3, 9]);
    finish(&ring, first).unwrap();
    finish(&ring, second).unwrap();
    levels(&[9]);
    theirs.write_all(b"y").unwrap();
    assert_eq!(&*finish(&ring, stream.next()).unwrap(), b"y");
    levels(&[9]);
    drop(stream);
    while watch.levels_in_flight() != 0 {
        ring.wait(None).unwrap();
        ring.reap();
    }
}

/// This holds also for a ring that has made no turn yet.
#[test]
fn rouse_ends_a_wait_in_which_all_signals_are_blocked() {
    // SAFETY: no pointers. The alarm ends a test that hangs.
    unsafe { libc::alarm(120) };
    for driver in [Driver::Auto, Driver::Readiness] {
        let ring = Ring::new(Config {
            driver,
            ..Config::default()
        })
        .unwrap();
        if !ring.reports_arrivals() {
            println!("skipped: the kernel has no deferred task work");
            continue;
        }
        let watch = ring.watch().unwrap();
        for late in [true, false] {
            let other = watch.clone();
            let waker = thread::spawn(move || {
                if late {
                    thread::sleep(Duration::from_millis(20));
                }
                other.wake();
            });
            if !late {
                waker.join().unwrap();
            }
            watch.wait(u64::MAX).unwrap();
            ring.reap();
        }
        assert_eq!(finish(&ring, ring.start(op::Nop::new(), 0)).unwrap(), ());
    }
}

type Job = (*mut (dyn FnMut() + 'static), mpsc::Sender<()>);

/// Sends jobs to the issuer's thread.
struct ToMaker(mpsc::SyncSender<Sent>);
struct Sent(Job);
// SAFETY: the sender of the job waits for its end.
unsafe impl Send for Sent {}

impl Proxy for ToMaker {
    fn call(&self, job: &mut dyn FnMut()) -> bool {
        let (done, is_done) = mpsc::channel();
        // SAFETY: only the lifetime is erased; `call` waits for the end of the job.
        let job = unsafe { std::mem::transmute::<&mut dyn FnMut(), &'static mut dyn FnMut()>(job) };
        self.0.send(Sent((job, done))).is_ok() && is_done.recv().is_ok()
    }

    fn wait(&self, timeout: Option<Duration>) {
        thread::sleep(timeout.unwrap_or_default().min(Duration::from_millis(1)));
    }
}

struct Shared(Ring);
// SAFETY: the threads of the test use the ring one after the other.
unsafe impl Sync for Shared {}

#[test]
fn another_thread_adopts_the_ring_and_returns_it() {
    let Some(ring) = ring() else { return };
    let (to_maker, jobs) = mpsc::sync_channel::<Sent>(1);
    ring.set_proxy(Box::new(ToMaker(to_maker)));
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let ours = Fd::new(ours);
    let maker = ring.owner();
    let mut stream = ring.recv_multi(ours.clone(), 1);
    let ring = Shared(ring);
    for round in 0..50u8 {
        // Echoes from the other thread, with system calls made here; some buffers are returned
        // here.
        let (ended, end) = mpsc::channel();
        let kept = std::thread::scope(|scope| {
            let (ring, stream, ours) = (&ring, &mut stream, ours.clone());
            let worker = scope.spawn(move || {
                let ring = &{ ring }.0;
                // SAFETY: until this thread has ended, the maker only runs jobs.
                unsafe { ring.adopt() };
                // With readiness any owner makes the calls.
                assert_eq!(ring.is_on_issuer_thread(), ring.mode() == Mode::Readiness);
                let data = finish(ring, stream.next()).unwrap();
                // A level that has no buffers yet, a cancelled operation, and a send.
                drop(ring.start(op::Nop::new(), round % 64));
                drop(ring.recv_multi(ours.clone(), round % 16));
                let (sent, _) = finish(ring, ring.start(op::Send::new(ours, data.to_vec()), 2));
                assert_eq!(sent.unwrap(), 4);
                ended.send(()).unwrap();
                data
            });
            theirs.write_all(&[round; 4]).unwrap();
            while end.try_recv().is_err() {
                if let Ok(Sent((job, done))) = jobs.try_recv() {
                    // SAFETY: its sender waits.
                    unsafe { (*job)() };
                    done.send(()).unwrap();
                }
                std::thread::yield_now();
            }
            worker.join().unwrap()
        });
        let mut reply = [0; 4];
        theirs.read_exact(&mut reply).unwrap();
        assert_eq!(reply, [round; 4]);
        if round % 2 == 0 {
            // This thread is not the owner yet: the buffer returns through the mailbox.
            drop(kept);
            // SAFETY: the other thread has ended.
            unsafe { ring.0.assign(maker) };
        } else {
            // SAFETY: as above.
            unsafe { ring.0.assign(maker) };
            drop(kept);
        }
        assert_eq!(ring.0.owner(), maker);
        finish(&ring.0, ring.0.start(op::Nop::new(), 0)).unwrap();
    }
    drop(stream);
    ring.0.shutdown();
    assert_eq!(ring.0.in_flight(), 0);
    ring.0.reap();
    assert_eq!(ring.0.slots_in_use(), 0);
}

/// A waker that counts its wakes.
#[derive(Default)]
struct Counter(std::sync::atomic::AtomicUsize);

impl std::task::Wake for Counter {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
}

#[test]
fn a_thread_that_stands_in_runs_no_user_code() {
    let Some(ring) = ring() else { return };
    let watch = ring.watch().unwrap();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let mut stream = ring.recv_multi(Fd::new(ours), 1);
    let wakes = std::sync::Arc::new(Counter::default());
    let woken = || wakes.0.load(std::sync::atomic::Ordering::Relaxed);
    let waker = Waker::from(wakes.clone());
    assert!(
        stream
            .poll_next(&mut Context::from_waker(&waker))
            .is_pending()
    );
    ring.submit().unwrap();
    // An operation that completes without a handle.
    let (idle, _other_end) = UnixStream::pair().unwrap();
    let readable = ring.start(op::PollAdd::new(Fd::new(idle), libc::POLLIN as u32), 2);
    ring.submit().unwrap();
    let slots = ring.slots_in_use();
    drop(readable);
    // An entry not yet handed over when the other thread comes.
    let nop = ring.start(op::Nop::new(), 3);
    theirs.write_all(b"x").unwrap();

    let (maker, ring) = (ring.owner(), Shared(ring));
    let mut wakers = Vec::new();
    while !nop.is_complete() || wakers.is_empty() {
        let turn = std::thread::scope(|scope| {
            let ring = &ring;
            // SAFETY: the maker waits for this thread.
            let other = scope.spawn(move || unsafe { { ring }.0.stand_in() });
            other.join().unwrap()
        });
        assert_eq!(ring.0.owner(), maker);
        wakers.extend(turn.wakers);
        // The steps of the maker's signal handler.
        watch.clear();
        watch.enter();
        assert!(rings(&watch, 0));
    }
    assert_eq!(woken(), 0);
    assert_eq!(wakers.len(), 1);
    wakers.into_iter().for_each(DeferredCall::run);
    assert_eq!(woken(), 1);
    // With the event and the nop, without the orphan.
    assert_eq!(ring.0.slots_in_use(), slots + 1);
    drop(nop);
    ring.0.reap();
    assert_eq!(ring.0.slots_in_use(), slots);
    assert_eq!(&*finish(&ring.0, stream.next()).unwrap(), b"x");
}
