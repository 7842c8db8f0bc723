//! Tests of rings that other threads use. They watch a ring for completions, become its owner, or
//! serve it while its owner is busy.

use std::future::Future;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use upshift_ring::{Config, DeferredCall, Driver, Fd, Mode, Proxy, Ring, RingWatch, op};

fn is_signalled(watch: &RingWatch, millis: i32) -> bool {
    let mut fd = libc::pollfd {
        fd: watch.raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: `fd` is a valid array of one entry.
    unsafe { libc::poll(&raw mut fd, 1, millis) == 1 }
}

fn ring() -> Option<Ring> {
    let ring = Ring::new(Config::default()).expect("a ring can be created");
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

fn block_on<F: Future>(ring: &Ring, future: F) -> F::Output {
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
fn an_arrival_signals_the_eventfd_while_the_owner_is_busy_unless_masked() {
    let Some(ring) = ring() else { return };
    let watch = ring.watch().unwrap();
    let (local, mut peer) = UnixStream::pair().unwrap();
    let mut stream = ring.recv_multi(Fd::new(local), 7);
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
        peer.write_all(b"x").unwrap();
        assert_eq!(
            is_signalled(&watch, if masked { 20 } else { 20_000 }),
            !masked
        );
        // Arrivals are visible whether the eventfd is masked or not.
        let began = std::time::Instant::now();
        while !watch.has_arrivals() && began.elapsed().as_secs() < 20 {
            std::thread::yield_now();
        }
        assert!(watch.has_arrivals());
        watch.clear();
        watch.mask();
        let data = block_on(&ring, stream.next()).unwrap();
        assert_eq!(&*data, b"x");
    }
}

#[test]
fn any_thread_may_notify_and_the_watch_outlives_the_ring() {
    let Some(ring) = ring() else { return };
    let watch = ring.watch().unwrap();
    let other = watch.clone();
    std::thread::spawn(move || other.notify()).join().unwrap();
    assert!(is_signalled(&watch, 0));
    watch.clear();
    assert!(!is_signalled(&watch, 0));
    drop(ring);
    watch.unmask();
    assert!(!watch.has_arrivals());
    watch.notify();
    assert!(is_signalled(&watch, 0));
}

#[test]
fn the_levels_in_flight_are_the_levels_of_uncompleted_operations() {
    let Some(ring) = ring() else { return };
    let watch = ring.watch().unwrap();
    let assert_levels = |expected: &[u8]| {
        let bits = expected.iter().fold(0, |all, level| all | 1 << level);
        assert_eq!(watch.levels_in_flight(), bits);
    };
    assert_levels(&[]);
    let (local, mut peer) = UnixStream::pair().unwrap();
    let local = Fd::new(local);
    let mut stream = ring.recv_multi(local.clone(), 9);
    let mut cx = Context::from_waker(Waker::noop());
    assert!(stream.poll_next(&mut cx).is_pending());
    let first = ring.start(op::Nop::new(), 3);
    let second = ring.start(op::Nop::new(), 3);
    assert_levels(&[3, 9]);
    block_on(&ring, first).unwrap();
    block_on(&ring, second).unwrap();
    assert_levels(&[9]);
    peer.write_all(b"y").unwrap();
    assert_eq!(&*block_on(&ring, stream.next()).unwrap(), b"y");
    assert_levels(&[9]);
    drop(stream);
    while watch.levels_in_flight() != 0 {
        ring.wait(None).unwrap();
        ring.reap();
    }
}

/// Another thread calls `wake` before or during the wait. In both cases the wait must end.
#[test]
fn wake_ends_a_wait_in_which_all_signals_are_blocked() {
    // SAFETY: the call takes no pointers, so it has no preconditions. The alarm ends a test that
    // hangs.
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
        for during_wait in [true, false] {
            let other = watch.clone();
            let thread = thread::spawn(move || {
                if during_wait {
                    thread::sleep(Duration::from_millis(20));
                }
                other.wake();
            });
            if !during_wait {
                thread.join().unwrap();
            }
            watch.wait(u64::MAX).unwrap();
            ring.reap();
        }
        assert_eq!(block_on(&ring, ring.start(op::Nop::new(), 0)).unwrap(), ());
    }
}

type Job = (*mut (dyn FnMut() + 'static), mpsc::Sender<()>);

struct CreatorProxy(mpsc::SyncSender<JobMessage>);
struct JobMessage(Job);
// SAFETY: the sender of the job waits until the job has ended, so only one thread uses the job at a
// time.
unsafe impl Send for JobMessage {}

impl Proxy for CreatorProxy {
    fn call(&self, job: &mut dyn FnMut()) -> bool {
        let (done, done_receiver) = mpsc::channel();
        // SAFETY: only the lifetime is erased; `call` waits for the end of the job.
        let job = unsafe { std::mem::transmute::<&mut dyn FnMut(), &'static mut dyn FnMut()>(job) };
        self.0.send(JobMessage((job, done))).is_ok() && done_receiver.recv().is_ok()
    }

    fn wait(&self, timeout: Option<Duration>) {
        thread::sleep(timeout.unwrap_or_default().min(Duration::from_millis(1)));
    }
}

struct Shared(Ring);
// SAFETY: the threads of the test use the ring one after the other, so no two use it at once.
unsafe impl Sync for Shared {}

#[test]
fn another_thread_adopts_the_ring_and_returns_it() {
    let Some(ring) = ring() else { return };
    let (to_creator, jobs) = mpsc::sync_channel::<JobMessage>(1);
    ring.set_proxy(Box::new(CreatorProxy(to_creator)));
    let (local, mut peer) = UnixStream::pair().unwrap();
    let local = Fd::new(local);
    let creator = ring.owner();
    let mut stream = ring.recv_multi(local.clone(), 1);
    let ring = Shared(ring);
    for round in 0..50u8 {
        // The other thread echoes data, while this thread makes its system calls. In every other
        // round, the buffer is returned before this thread owns the ring again.
        let (end_sender, end_receiver) = mpsc::channel();
        let buffer = std::thread::scope(|scope| {
            let (ring, stream, local) = (&ring, &mut stream, local.clone());
            let worker = scope.spawn(move || {
                let ring = &{ ring }.0;
                // SAFETY: the creator only runs jobs until this thread has ended.
                unsafe { ring.adopt() };
                // With readiness, the owner itself makes the system calls.
                assert_eq!(ring.is_on_issuer_thread(), ring.mode() == Mode::Readiness);
                let data = block_on(ring, stream.next()).unwrap();
                // The thread cancels operations, at levels that may have no buffers yet, and sends.
                drop(ring.start(op::Nop::new(), round % 64));
                drop(ring.recv_multi(local.clone(), round % 16));
                let (sent, _) = block_on(ring, ring.start(op::Send::new(local, data.to_vec()), 2));
                assert_eq!(sent.unwrap(), 4);
                end_sender.send(()).unwrap();
                data
            });
            peer.write_all(&[round; 4]).unwrap();
            while end_receiver.try_recv().is_err() {
                if let Ok(JobMessage((job, done))) = jobs.try_recv() {
                    // SAFETY: the sender of the job waits until the job has ended.
                    unsafe { (*job)() };
                    done.send(()).unwrap();
                }
                std::thread::yield_now();
            }
            worker.join().unwrap()
        });
        let mut reply = [0; 4];
        peer.read_exact(&mut reply).unwrap();
        assert_eq!(reply, [round; 4]);
        if round % 2 == 0 {
            // This thread does not own the ring yet, so the buffer returns through the mailbox.
            drop(buffer);
            // SAFETY: the other thread has ended, so no other thread uses the ring.
            unsafe { ring.0.assign(creator) };
        } else {
            // SAFETY: as above.
            unsafe { ring.0.assign(creator) };
            drop(buffer);
        }
        assert_eq!(ring.0.owner(), creator);
        block_on(&ring.0, ring.0.start(op::Nop::new(), 0)).unwrap();
    }
    drop(stream);
    ring.0.shutdown();
    assert_eq!(ring.0.in_flight(), 0);
    ring.0.reap();
    assert_eq!(ring.0.slots_in_use(), 0);
}

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
    let (local, mut peer) = UnixStream::pair().unwrap();
    let mut stream = ring.recv_multi(Fd::new(local), 1);
    let wakes = std::sync::Arc::new(Counter::default());
    let wake_count = || wakes.0.load(std::sync::atomic::Ordering::Relaxed);
    let waker = Waker::from(wakes.clone());
    assert!(
        stream
            .poll_next(&mut Context::from_waker(&waker))
            .is_pending()
    );
    ring.submit().unwrap();
    // The handle of this operation is dropped before the operation completes.
    let (idle, _other_end) = UnixStream::pair().unwrap();
    let readable = ring.start(op::PollAdd::new(Fd::new(idle), libc::POLLIN as u32), 2);
    ring.submit().unwrap();
    let slots = ring.slots_in_use();
    drop(readable);
    // This entry is not submitted before the other thread stands in.
    let nop = ring.start(op::Nop::new(), 3);
    peer.write_all(b"x").unwrap();

    let (creator, ring) = (ring.owner(), Shared(ring));
    let mut wakers = Vec::new();
    while !nop.is_complete() || wakers.is_empty() {
        let outcome = std::thread::scope(|scope| {
            let ring = &ring;
            // SAFETY: the creator waits for this thread, so only this thread uses the ring.
            let other = scope.spawn(move || unsafe { { ring }.0.stand_in() });
            other.join().unwrap()
        });
        assert_eq!(ring.0.owner(), creator);
        wakers.extend(outcome.wakers);
        // The creator's signal handler takes these steps.
        watch.clear();
        watch.enter();
        assert!(is_signalled(&watch, 0));
    }
    assert_eq!(wake_count(), 0);
    assert_eq!(wakers.len(), 1);
    wakers.into_iter().for_each(DeferredCall::run);
    assert_eq!(wake_count(), 1);
    // The event and the nop occupy slots; the operation without a handle no longer does.
    assert_eq!(ring.0.slots_in_use(), slots + 1);
    drop(nop);
    ring.0.reap();
    assert_eq!(ring.0.slots_in_use(), slots);
    assert_eq!(&*block_on(&ring.0, stream.next()).unwrap(), b"x");
}
