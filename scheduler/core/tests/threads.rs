//! Tests the scheduler with real threads. Wakes come from all threads while vCPUs come and go. The
//! invariants in the names of tests are numbered in the documentation of `upshift_core`.

#![cfg(not(loom))]

mod threaded;

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::thread;

use threaded::{OneAtATime, Random, Stop, ThreadHost, domain, eventually, serve};
use upshift_core::{Config, CoroutineId, Domain, Floor, Level, Priority};

/// Largest number of coroutines of a test, or of a thread that meddles.
const COROUTINES: usize = if cfg!(miri) { 4 } else { 64 };
/// Number of wakes per waking thread.
const WAKES: usize = if cfg!(miri) { 12 } else { 1_000_000 };
/// Number of random operations per thread that meddles.
const STEPS: usize = if cfg!(miri) { 10 } else { 1_000_000 };

fn configs() -> Vec<Config> {
    let plain = Config::default();
    let chaos = Config {
        chaos: Some(7),
        floor: Some(Floor {
            from: Level::at::<20>(),
            percent: 20,
            quantum: 1_000,
        }),
        coarse_below: 1_000,
        ..Config::default()
    };
    vec![plain, chaos]
}

fn random_level(random: &mut Random) -> Priority {
    Priority::At(Level::new(random.below(64) as u8).unwrap())
}

#[derive(Default)]
struct Counted {
    /// Number of wakes so far, incremented before each wake.
    wakes: AtomicU64,
    /// Value of `wakes` that the last poll saw.
    seen_wakes: AtomicU64,
    polls: AtomicU64,
    waker: Mutex<Option<Waker>>,
    check: OneAtATime,
}

fn counted(coroutine: Arc<Counted>, failures: Arc<AtomicU64>) -> impl Future<Output = ()> + Send {
    poll_fn(move |cx| {
        coroutine.check.during(&failures, || {
            coroutine.polls.fetch_add(1, Ordering::Relaxed);
            let mut waker = coroutine.waker.lock().unwrap();
            if waker.is_none() {
                *waker = Some(cx.waker().clone());
            }
            drop(waker);
            coroutine
                .seen_wakes
                .store(coroutine.wakes.load(Ordering::Relaxed), Ordering::Relaxed);
            Poll::<()>::Pending
        })
    })
}

#[test]
fn invariant_2_and_3_every_wake_is_seen_by_a_poll_and_polls_never_overlap() {
    for (config, coroutines) in configs().into_iter().zip([COROUTINES, 2]) {
        let domain = domain(config);
        let (stop, failures) = (Stop::default(), Arc::new(AtomicU64::new(0)));
        let executors: Vec<_> = (0..3).map(|_| domain.add_vcpu().unwrap()).collect();
        let mut random = Random(1);
        let all: Vec<(Arc<Counted>, CoroutineId)> = (0..coroutines)
            .map(|_| {
                let coroutine = Arc::<Counted>::default();
                let future = counted(coroutine.clone(), failures.clone());
                let handle = domain.spawn(future, random_level(&mut random)).unwrap();
                (coroutine, handle.id())
            })
            .collect();
        thread::scope(|s| {
            for executor in executors {
                let stop = &stop;
                s.spawn(move || serve(executor, stop, usize::MAX, |_| ()));
            }
            let wakers: Vec<_> = (0..3)
                .map(|n| {
                    let (all, domain) = (&all, &domain);
                    s.spawn(move || {
                        let mut random = Random(n + 10);
                        for _ in 0..WAKES {
                            let (coroutine, id) = &all[random.below(all.len())];
                            coroutine.wakes.fetch_add(1, Ordering::Relaxed);
                            let by_waker = random.below(2) == 0;
                            match &*coroutine.waker.lock().unwrap() {
                                Some(waker) if by_waker => waker.wake_by_ref(),
                                _ => domain.wake(*id).unwrap(),
                            }
                        }
                    })
                })
                .collect();
            for waker in wakers {
                waker.join().unwrap();
            }
            eventually("the last wake of each is seen", || {
                all.iter().all(|(coroutine, _)| {
                    coroutine.seen_wakes.load(Ordering::SeqCst)
                        == coroutine.wakes.load(Ordering::SeqCst)
                })
            });
            stop.set(&domain);
        });
        assert_eq!(failures.load(Ordering::SeqCst), 0);
        for (coroutine, _) in &all {
            let (polls, wakes) = (
                coroutine.polls.load(Ordering::SeqCst),
                coroutine.wakes.load(Ordering::SeqCst),
            );
            assert!(polls <= wakes + 1, "{polls} polls for {wakes} wakes");
        }
        assert_eq!(domain.idle_vcpus(), 0);
    }
}

/// Counts a living coroutine, and records a failure if a pinned coroutine is dropped on another
/// thread.
struct Alive {
    living: Arc<AtomicU64>,
    failures: Arc<AtomicU64>,
    check: OneAtATime,
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.check.during(&self.failures, || ());
        self.living.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Yields three times and then blocks, repeatedly; never ends by itself.
async fn yield_and_block(alive: Alive) {
    let mut polls = 0;
    poll_fn(move |cx| {
        alive.check.during(&alive.failures, || {
            polls += 1;
            if polls % 4 != 0 {
                cx.waker().wake_by_ref();
            }
            Poll::<()>::Pending
        })
    })
    .await;
}

/// Spawns, wakes, cancels and changes levels at random.
fn meddle(domain: &Domain<ThreadHost>, seed: u64, alive: &impl Fn(OneAtATime) -> Alive) {
    let mut random = Random(seed);
    let mut handles = Vec::new();
    for _ in 0..STEPS {
        let pick = |random: &mut Random, len: usize| random.below(len.max(1));
        let k = pick(&mut random, handles.len());
        match random.below(8) {
            _ if handles.len() < 8 => {
                let future = yield_and_block(alive(OneAtATime::default()));
                handles.push(domain.spawn(future, random_level(&mut random)).unwrap());
            }
            0 if handles.len() < COROUTINES => {
                let future = yield_and_block(alive(OneAtATime::default()));
                handles.push(domain.spawn(future, random_level(&mut random)).unwrap());
            }
            0 | 1 => handles.swap_remove(k).cancel(),
            2..=4 => {
                let Priority::At(level) = random_level(&mut random) else {
                    unreachable!()
                };
                domain.reprio(handles[k].id(), level).unwrap();
            }
            _ => domain.wake(handles[k].id()).unwrap(),
        }
    }
    for handle in handles {
        handle.cancel();
    }
}

#[test]
fn vcpus_come_and_go_while_others_spawn_wake_reprio_and_cancel() {
    for config in configs() {
        let domain = domain(config);
        let stop = Stop::default();
        let (living, failures) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let alive = |check| {
            living.fetch_add(1, Ordering::SeqCst);
            Alive {
                living: living.clone(),
                failures: failures.clone(),
                check,
            }
        };
        let permanent = domain.add_vcpu().unwrap();
        thread::scope(|s| {
            let (alive, domain, stop) = (&alive, &domain, &stop);
            s.spawn(move || serve(permanent, stop, usize::MAX, |_| ()));
            for n in 0..2 {
                s.spawn(move || {
                    let mut random = Random(n + 1);
                    while !stop.is_set() {
                        let executor = domain.add_vcpu().unwrap();
                        let polls = 1 + random.below(if cfg!(miri) { 5 } else { 5_000 });
                        serve(executor, stop, polls, |executor| {
                            for _ in 0..3 {
                                let here = Rc::new(alive(OneAtATime::pinned_here()));
                                let future = async move {
                                    poll_fn(|cx| {
                                        here.check.during(&here.failures, || {
                                            cx.waker().wake_by_ref();
                                            Poll::<()>::Pending
                                        })
                                    })
                                    .await;
                                };
                                let level = random_level(&mut random);
                                // SAFETY: this thread serves the vCPU and retires it; the handle,
                                // if there is one, is dropped at once.
                                let handle = unsafe { executor.spawn_pinned(future, level) };
                                drop(handle);
                            }
                        });
                    }
                });
            }
            let meddlers: Vec<_> = (0..2)
                .map(|n| s.spawn(move || meddle(domain, n + 100, alive)))
                .collect();
            for meddler in meddlers {
                meddler.join().unwrap();
            }
            eventually("all cancelled coroutines end", || {
                domain.cancel_all();
                // The two vCPUs that come and go keep spawning pinned coroutines, three each.
                living.load(Ordering::SeqCst) <= 6
            });
            domain.close();
            // Threads that add a vCPU from now on find the domain closed.
            stop.set(domain);
        });
        assert_eq!(failures.load(Ordering::SeqCst), 0);
        drop(domain);
        assert_eq!(living.load(Ordering::SeqCst), 0);
    }
}

#[test]
fn coroutines_that_wake_each_other_across_vcpus_never_stall() {
    const LAPS: u64 = if cfg!(miri) { 5 } else { 400_000 };
    let domain = domain(Config::default());
    let stop = Stop::default();
    let executors: Vec<_> = (0..2).map(|_| domain.add_vcpu().unwrap()).collect();
    let laps = Arc::new(AtomicU64::new(0));
    let wakers: Arc<[Mutex<Option<Waker>>; 2]> = Arc::default();
    thread::scope(|s| {
        for (n, executor) in executors.into_iter().enumerate() {
            let (stop, laps, wakers) = (&stop, laps.clone(), wakers.clone());
            s.spawn(move || {
                serve(executor, stop, usize::MAX, |executor| {
                    let future = poll_fn(move |cx| {
                        *wakers[n].lock().unwrap() = Some(cx.waker().clone());
                        let lap = laps.load(Ordering::SeqCst);
                        if lap % 2 == n as u64 && lap < LAPS {
                            laps.fetch_add(1, Ordering::SeqCst);
                        }
                        let other = wakers[1 - n].lock().unwrap().take();
                        if let Some(other) = other {
                            other.wake();
                        }
                        Poll::<()>::Pending
                    });
                    let level = Priority::At(Level::DEFAULT);
                    // SAFETY: the future and its output are `Send`.
                    unsafe { executor.spawn_pinned(future, level) }
                        .unwrap()
                        .detach();
                });
            });
        }
        eventually("the laps are done", || laps.load(Ordering::SeqCst) == LAPS);
        stop.set(&domain);
    });
}

/// A thief moves a pinned coroutine from the inbox into the ready queue of a vCPU that parks at
/// that moment. The coroutine must still be polled.
#[test]
fn invariant_2_a_pinned_coroutine_is_not_lost_to_a_thief_that_looks_for_work() {
    const ROUNDS: u64 = if cfg!(miri) { 20 } else { 100_000 };
    let domain = domain(Config::default());
    let (home, thief) = (domain.add_vcpu().unwrap(), domain.add_vcpu().unwrap());
    let (wakes, seen_wakes) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let pinned = {
        let (wakes, seen_wakes) = (wakes.clone(), seen_wakes.clone());
        poll_fn(move |_| {
            seen_wakes.store(wakes.load(Ordering::SeqCst), Ordering::SeqCst);
            Poll::<()>::Pending
        })
    };
    // SAFETY: the future and its output are `Send`.
    let pinned = unsafe { home.spawn_pinned(pinned, Priority::At(Level::at::<10>())) };
    let id = pinned.unwrap().id();
    let waker = {
        let (wakes, seen_wakes, domain) = (wakes.clone(), seen_wakes.clone(), domain.clone());
        poll_fn(move |cx| {
            if seen_wakes.load(Ordering::SeqCst) == wakes.load(Ordering::SeqCst) {
                wakes.fetch_add(1, Ordering::SeqCst);
                domain.wake(id).unwrap();
            }
            if seen_wakes.load(Ordering::SeqCst) == ROUNDS {
                return Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
    };
    // SAFETY: the future and its output are `Send`.
    let waker = unsafe { thief.spawn_pinned(waker, Priority::At(Level::at::<40>())) };
    waker.unwrap().detach();
    let stop = Stop::default();
    thread::scope(|scope| {
        scope.spawn(|| serve(home, &stop, usize::MAX, |_| ()));
        scope.spawn(|| serve(thief, &stop, usize::MAX, |_| ()));
        eventually("the pinned coroutine has seen all wakes", || {
            seen_wakes.load(Ordering::SeqCst) >= ROUNDS
        });
        stop.set(&domain);
    });
}
