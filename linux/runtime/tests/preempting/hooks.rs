//! Tests of the hooks `on_vcpu_start` and `on_vcpu_stop` on every kind of thread that polls: the
//! thread of `block_on`, the first thread of a vCPU, and spare threads.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, PoisonError};
use std::thread::{self, ThreadId};

use upshift::{JoinHandle, Level};

use super::*;
use crate::cpu::cpu_time;

/// A value that counts its uses on threads other than the one that created it.
struct ThreadBound(Rc<ThreadId>, Arc<AtomicUsize>);

impl ThreadBound {
    fn new(misplaced: &Arc<AtomicUsize>) -> ThreadBound {
        ThreadBound(Rc::new(thread::current().id()), misplaced.clone())
    }

    fn check_thread(&self) {
        if *self.0 != thread::current().id() {
            self.1.fetch_add(1, SeqCst);
        }
    }
}

impl Drop for ThreadBound {
    fn drop(&mut self) {
        self.check_thread();
    }
}

/// Returns builders of runtimes with one and two vCPUs, inline and preemptible.
fn builders() -> impl Iterator<Item = Builder> {
    let kinds = [Preemption::Off, Preemption::Required];
    kinds.into_iter().flat_map(|preemption| {
        [1, 2].map(|vcpus| Runtime::builder().vcpus(vcpus).preemption(preemption))
    })
}

/// Makes every thread of the vCPUs poll, including spare threads, because long polls are suspended
/// for more urgent polls.
fn poll_on_all_threads(runtime: &Runtime) {
    runtime.block_on(async {
        let long = |level| {
            let poll = async { burn(Duration::from_millis(5)) };
            upshift::spawn(poll, Level::new(level).unwrap())
        };
        let polls: Vec<JoinHandle<()>> = (10..30).rev().map(long).collect();
        for poll in polls {
            poll.await.unwrap();
        }
    });
}

#[test]
fn coroutines_that_a_hook_starts_with_spawn_local_stay_on_its_thread() {
    let _cpu = CPU.lock().unwrap_or_else(PoisonError::into_inner);
    limit_process();
    for builder in builders() {
        let (misplaced, polled) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let hook = {
            let (misplaced, polled) = (misplaced.clone(), polled.clone());
            move || {
                let (value, polled) = (ThreadBound::new(&misplaced), polled.clone());
                let local = async move {
                    value.check_thread();
                    polled.fetch_add(1, SeqCst);
                };
                // A refused spawn panics and drops the future.
                let start = || upshift::spawn_local(local, Level::at::<20>()).detach();
                let _ = catch_unwind(AssertUnwindSafe(start));
            }
        };
        let built = builder
            .on_vcpu_start(hook.clone())
            .on_vcpu_stop(hook)
            .build();
        let runtime = match built {
            Ok(runtime) => runtime,
            Err(error) => return skipped(&error),
        };
        poll_on_all_threads(&runtime);
        // By then the coroutines that the hook of `block_on` has started are ready.
        runtime.block_on(upshift::time::sleep(Duration::from_millis(5)));
        drop(runtime);
        assert_eq!(
            misplaced.load(SeqCst),
            0,
            "a local coroutine was polled or dropped on another thread"
        );
        assert!(polled.load(SeqCst) > 0, "no local coroutine was polled");
    }
}

#[test]
fn a_hook_may_start_coroutines_only_while_its_thread_has_the_vcpu() {
    let _cpu = CPU.lock().unwrap_or_else(PoisonError::into_inner);
    limit_process();
    for builder in builders() {
        let (polled, late_spawns) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (counts, accepted) = (polled.clone(), late_spawns.clone());
        let built = builder
            .on_vcpu_start(move || {
                let polled = counts.clone();
                let counted = async move { _ = polled.fetch_add(1, SeqCst) };
                // The spawn is refused when the runtime is about to end.
                let _ = upshift::try_spawn(counted, Level::at::<20>());
            })
            .on_vcpu_stop(move || {
                if upshift::try_spawn(async {}, Level::at::<20>()).is_ok() {
                    accepted.fetch_add(1, SeqCst);
                }
            })
            .build();
        let runtime = match built {
            Ok(runtime) => runtime,
            Err(error) => return skipped(&error),
        };
        poll_on_all_threads(&runtime);
        drop(runtime);
        assert!(polled.load(SeqCst) > 0);
        assert_eq!(
            late_spawns.load(SeqCst),
            0,
            "a stop hook started a coroutine"
        );
    }
}

/// A poll that blocks for long delays the drop of a runtime. The dropping thread sleeps until the
/// poll ends, and does not begin to serve a vCPU again and again.
#[test]
fn a_runtime_that_waits_for_a_poll_at_its_end_sleeps_and_calls_no_hooks() {
    let _cpu = CPU.lock().unwrap_or_else(PoisonError::into_inner);
    limit_process();
    // A runtime with one inline vCPU polls only inside `block_on`, so it is skipped.
    for builder in builders().skip(1) {
        let hooks = Arc::new(AtomicUsize::new(0));
        let counts = hooks.clone();
        let built = builder
            .on_vcpu_start(move || _ = counts.fetch_add(1, SeqCst))
            .build();
        let runtime = match built {
            Ok(runtime) => runtime,
            Err(error) => return skipped(&error),
        };
        let blocks = Arc::new(AtomicBool::new(false));
        let setter = blocks.clone();
        let poll = async move {
            setter.store(true, SeqCst);
            thread::sleep(Duration::from_millis(600));
        };
        let one_vcpu = runtime.handle().vcpus() == 1;
        runtime
            .handle()
            .spawn(poll, Level::at::<20>())
            .unwrap()
            .detach();
        let began = Instant::now();
        while !blocks.load(SeqCst) && began.elapsed() < LIMIT {
            thread::sleep(Duration::from_millis(1));
        }
        assert!(blocks.load(SeqCst));
        let before = (hooks.load(SeqCst), cpu_time(), Instant::now());
        drop(runtime);
        let (calls, used) = (hooks.load(SeqCst) - before.0, cpu_time() - before.1);
        let elapsed = before.2.elapsed();
        // Each thread may begin to serve once more to cancel coroutines, and spare threads continue
        // in turn.
        assert!(
            calls < 20,
            "{calls} calls of the hook, one vCPU: {one_vcpu}"
        );
        assert!(
            used < elapsed / 2,
            "{used:?} of CPU time in {elapsed:?}, one vCPU: {one_vcpu}"
        );
    }
}

#[test]
fn suspended_polls_hold_at_most_three_descriptors_of_their_threads_open() {
    let Some(runtime) = runtime() else { return };
    let (began, end) = (
        Arc::new(AtomicUsize::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    for level in (11..18).rev() {
        let (count, flag) = (began.clone(), end.clone());
        let poll = async move {
            count.fetch_add(1, SeqCst);
            spin_until(&flag);
        };
        let level = Level::new(level).unwrap();
        runtime.handle().spawn(poll, level).unwrap().detach();
        let expected_polls = 18 - level.get() as usize;
        let since = Instant::now();
        while began.load(SeqCst) < expected_polls && since.elapsed() < LIMIT {
            thread::sleep(Duration::from_millis(1));
        }
    }
    let num_polls = began.load(SeqCst);
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    let statuses = open
        .filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok())
        .filter(|file| file.starts_with("/proc") && file.ends_with("stat"));
    let num_open = statuses.count();
    end.store(true, SeqCst);
    assert_eq!(num_polls, 7, "a poll did not interrupt the previous one");
    // The watcher itself may hold one file open.
    assert!(num_open <= 4, "{num_open} files are open");
}
