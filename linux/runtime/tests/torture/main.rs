//! Stress tests of preemption with popular crates. Coroutines of different levels use them at the
//! same time, and each must make progress, no matter how the polls of other coroutines behave. A
//! *party* is a coroutine or thread that repeats a step (`parties.rs`).

#[path = "../support/child.rs"]
mod child;
#[path = "../support/cpu.rs"]
mod cpu;
#[path = "../support/handler.rs"]
mod handler;
#[path = "../support/masked.rs"]
mod masked;
mod parties;
mod replaced;

use std::cell::RefCell;
use std::collections::HashMap;
use std::hint::black_box;
use std::io::Write;
use std::sync::{Arc, Mutex, OnceLock, RwLock, mpsc};
use std::thread;
use std::time::Duration;

use futures_util::FutureExt;
use masked::without_signals;
use parties::{BACKGROUND, MIDDLE, Parties, URGENT, burn, micros, torture};
use upshift::sync::Notify;
use upshift::{Level, Runtime, time};

/// Yields if another coroutine should run.
async fn yield_if_due() {
    upshift::yield_if_needed().await;
}

/// Sleeps for a time that divides no other period in these tests.
async fn pause() {
    time::sleep(micros(97)).await;
}

#[test]
fn a_std_mutex_whose_holder_wakes_a_coroutine() {
    torture(|runtime, parties| {
        let (lock, bell) = (Arc::new(Mutex::new(0u64)), Arc::new(Notify::new()));
        let (l, b) = (lock.clone(), bell.clone());
        parties.party(
            runtime,
            BACKGROUND,
            move || {
                let mut held = l.lock().unwrap();
                burn(micros(300));
                *held += 1;
                b.notify_one();
            },
            yield_if_due,
        );
        parties.party(
            runtime,
            URGENT,
            move || {
                *lock.lock().unwrap() += 1;
            },
            pause,
        );
        parties.party(
            runtime,
            MIDDLE,
            || (),
            move || {
                let bell = bell.clone();
                async move { bell.notified().await }
            },
        );
    });
}

#[test]
fn a_std_mutex_for_which_a_thread_outside_of_the_runtime_waits() {
    torture(|runtime, parties| {
        let lock = Arc::new(Mutex::new(0u64));
        let l = lock.clone();
        let hold = move || {
            let mut held = l.lock().unwrap();
            burn(micros(300));
            *held += 1;
        };
        parties.party(runtime, BACKGROUND, hold, pause);
        parties.outsider(runtime, move || *lock.lock().unwrap() += 1);
    });
}

#[test]
fn a_std_rwlock_and_a_oneshot() {
    torture(|runtime, parties| {
        let lock = Arc::new(RwLock::new(0u64));
        let (l, m) = (lock.clone(), lock.clone());
        parties.party(
            runtime,
            BACKGROUND,
            move || {
                let mut held = l.write().unwrap();
                burn(micros(200));
                let (sender, receiver) = upshift::sync::oneshot::channel();
                let _ = sender.send(*held);
                *held += receiver.now_or_never().is_some() as u64;
            },
            yield_if_due,
        );
        parties.party(
            runtime,
            MIDDLE,
            move || {
                black_box(*m.read().unwrap());
            },
            pause,
        );
        parties.party(
            runtime,
            URGENT,
            move || {
                black_box(*lock.read().unwrap());
            },
            pause,
        );
    });
}

#[test]
fn a_parking_lot_mutex_whose_holder_sends_a_message() {
    torture(|runtime, parties| {
        let lock = Arc::new(parking_lot::Mutex::new(()));
        let (sender, receiver) = upshift::sync::mpsc::unbounded_channel::<u64>();
        let l = lock.clone();
        parties.party(
            runtime,
            BACKGROUND,
            move || {
                let _held = l.lock();
                burn(micros(200));
                let _ = sender.send(1);
            },
            yield_if_due,
        );
        parties.party(runtime, URGENT, move || drop(lock.lock()), pause);
        let receiver = Arc::new(tokio::sync::Mutex::new(receiver));
        parties.party(
            runtime,
            MIDDLE,
            || (),
            move || {
                let receiver = receiver.clone();
                async move {
                    let mut receiver = receiver.lock().await;
                    let _ = receiver.recv().await;
                }
            },
        );
    });
}

#[test]
fn listeners_of_event_listener() {
    torture(|runtime, parties| {
        let event = Arc::new(event_listener::Event::new());
        for _ in 0..20 {
            let event = event.clone();
            parties.party(runtime, Level::at::<41>(), || (), move || event.listen());
        }
        let (e, f) = (event.clone(), event.clone());
        parties.party(
            runtime,
            BACKGROUND,
            move || {
                e.notify(usize::MAX);
            },
            pause,
        );
        parties.party(runtime, URGENT, move || drop(f.listen()), pause);
    });
}

/// Runs a less urgent party that sends a hundred messages at a time, and an urgent party that
/// receives them and spins until the channel is empty.
fn run_spinning_receiver<S, R>(channel: impl Fn() -> (S, R))
where
    S: Fn() + Send + 'static,
    R: Fn() -> bool + Send + 'static,
{
    torture(|runtime, parties| {
        let (send, receive) = channel();
        parties.party(
            runtime,
            BACKGROUND,
            move || (0..100).for_each(|_| send()),
            yield_if_due,
        );
        parties.party(runtime, URGENT, move || while receive() {}, pause);
    });
}

#[test]
fn a_std_channel_whose_receiver_spins() {
    run_spinning_receiver(|| {
        let (sender, receiver) = mpsc::sync_channel::<[u64; 4]>(1_000);
        let send = move || _ = sender.try_send([1; 4]);
        (send, move || receiver.try_recv().is_ok())
    });
}

#[test]
fn a_crossbeam_channel_whose_receiver_spins() {
    run_spinning_receiver(|| {
        let (sender, receiver) = crossbeam_channel::bounded::<[u64; 4]>(1_000);
        let send = move || _ = sender.try_send([1; 4]);
        (send, move || receiver.try_recv().is_ok())
    });
}

/// Adds a party that computes and sends, and an urgent party that receives.
fn add_channel_parties<S, R>(
    runtime: &Runtime,
    parties: &mut Parties,
    send: impl FnMut() -> S + Send + 'static,
    receive: impl FnMut() -> R + Send + 'static,
) where
    S: Future<Output = ()> + Send,
    R: Future<Output = ()> + Send,
{
    parties.party(runtime, BACKGROUND, || burn(micros(50)), send);
    parties.party(runtime, URGENT, || (), receive);
}

#[test]
fn channels_of_async_channel_and_flume() {
    torture(|runtime, parties| {
        let (sender, receiver) = async_channel::bounded::<u64>(16);
        let send = move || {
            let sender = sender.clone();
            async move { _ = sender.send(1).await }
        };
        let receive = move || {
            let receiver = receiver.clone();
            async move { _ = receiver.recv().await }
        };
        add_channel_parties(runtime, parties, send, receive);
        let (sender, receiver) = flume::bounded::<u64>(16);
        let send = move || {
            let sender = sender.clone();
            async move { _ = sender.send_async(1).await }
        };
        let receive = move || {
            let receiver = receiver.clone();
            async move { _ = receiver.recv_async().await }
        };
        add_channel_parties(runtime, parties, send, receive);
    });
}

#[test]
fn a_tokio_mutex_and_a_dashmap() {
    torture(|runtime, parties| {
        let (lock, map) = (
            Arc::new(tokio::sync::Mutex::new(0u64)),
            Arc::new(dashmap::DashMap::new()),
        );
        for level in [BACKGROUND, MIDDLE, URGENT] {
            let (lock, map) = (lock.clone(), map.clone());
            let mut key = u64::from(level.get());
            parties.party(
                runtime,
                level,
                move || {
                    key = key.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    *map.entry(key % 64).or_insert(0u64) += 1;
                },
                move || {
                    let lock = lock.clone();
                    async move {
                        *lock.lock().await += 1;
                        pause().await;
                    }
                },
            );
        }
    });
}

thread_local! {
    static LOCAL: RefCell<HashMap<u64, String>> = RefCell::new(HashMap::new());
}

#[test]
fn thread_locals_and_the_allocator() {
    torture(|runtime, parties| {
        for level in [BACKGROUND, BACKGROUND, MIDDLE, URGENT] {
            let mut count = 0u64;
            parties.resting_party(runtime, level, move || {
                for _ in 0..200 {
                    count += 1;
                    // No other poll can borrow the map meanwhile, because a suspended poll occupies
                    // its thread.
                    LOCAL.with_borrow_mut(|map| {
                        map.insert(count % 500, format!("{count:>200}"));
                    });
                    black_box(vec![0u8; 100 + (count % 9_000) as usize]);
                }
            });
        }
    });
}

#[test]
fn a_once_lock_and_a_shared_future() {
    torture(|runtime, parties| {
        let cell = Arc::new(Mutex::new(Arc::new(OnceLock::<u64>::new())));
        for level in [BACKGROUND, URGENT] {
            let cell = cell.clone();
            parties.resting_party(runtime, level, move || {
                let current = cell.lock().unwrap().clone();
                current.get_or_init(|| {
                    burn(micros(200));
                    7
                });
                *cell.lock().unwrap() = Arc::default();
            });
        }
        let shared = Arc::new(Mutex::new(None));
        for level in [BACKGROUND, MIDDLE, URGENT] {
            let shared = shared.clone();
            parties.party(
                runtime,
                level,
                || (),
                move || {
                    let mut slot = shared.lock().unwrap();
                    let future = match slot.take() {
                        Some(future) => future,
                        // The sleep lasts ten times as long as a poll in a slow build beside other
                        // programs.
                        None => time::sleep(micros(1_500)).boxed().shared(),
                    };
                    if future.peek().is_none() {
                        *slot = Some(future.clone());
                    }
                    drop(slot);
                    future
                },
            );
        }
    });
}

#[test]
fn rayon_and_scoped_threads_inside_a_poll() {
    torture(|runtime, parties| {
        parties.party(
            runtime,
            BACKGROUND,
            || {
                let (a, b) = rayon::join(|| burn(micros(200)), || burn(micros(200)));
                black_box((a, b));
            },
            pause,
        );
        parties.party(
            runtime,
            MIDDLE,
            || {
                thread::scope(|scope| {
                    scope.spawn(|| burn(micros(100)));
                    burn(micros(100));
                });
            },
            pause,
        );
        parties.party(runtime, URGENT, || burn(micros(5)), pause);
    });
}

#[test]
fn blocking_calls_do_not_stop_the_vcpu() {
    torture(|runtime, parties| {
        for level in [BACKGROUND, MIDDLE] {
            parties.party(
                runtime,
                level,
                || thread::sleep(Duration::from_millis(5)),
                yield_if_due,
            );
        }
        let (reader, writer) = std::io::pipe().unwrap();
        let (mut reader, mut writer) = (reader, writer);
        parties.party(
            runtime,
            URGENT,
            move || {
                let mut buffer = [0u8; 64];
                black_box(std::io::Read::read(&mut reader, &mut buffer).unwrap());
            },
            yield_if_due,
        );
        parties.party(
            runtime,
            Level::at::<50>(),
            move || writer.write_all(&[1; 64]).unwrap(),
            pause,
        );
        parties.party(runtime, Level::at::<60>(), || (), pause);
    });
}

/// If a poll blocks all signals, the signal that suspends it stays pending until the poll unblocks
/// its signals. By then the lock is free, or the next poll holds it.
#[test]
fn polls_that_block_all_signals_and_a_std_mutex() {
    torture(|runtime, parties| {
        let lock = Arc::new(Mutex::new(0u64));
        let masked_step = |time_us| {
            let lock = lock.clone();
            move || {
                without_signals(|| {
                    let mut held = lock.lock().unwrap();
                    burn(micros(time_us));
                    *held += 1;
                });
            }
        };
        parties.party(runtime, BACKGROUND, masked_step(300), yield_if_due);
        parties.party(runtime, MIDDLE, masked_step(100), pause);
        parties.party(runtime, URGENT, move || *lock.lock().unwrap() += 1, pause);
    });
}
