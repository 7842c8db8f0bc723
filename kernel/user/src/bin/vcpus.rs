//! Tests of coroutines on several vCPUs.

#![no_std]
#![no_main]

extern crate alloc;

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::future::{Future, poll_fn};
use core::pin::Pin;
use core::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use core::sync::atomic::{AtomicU32, AtomicU64};
use core::task::Poll;

use os_user::coroutine::{self, current, spawn, spawn_local, yield_now};
use os_user::cpu::alloc_cpu;
use os_user::sync::Mutex;
use os_user::testing::{Outcome, message, run_all};
use os_user::{ensure, tests};
use os_user::{now, pipe, read, sleep, sleep_micros, sys, thread, ticks_per_second, write};

os_user::coroutine_entry!(main);

tests! {
    coroutines_run_on_every_vcpu,
    producers_and_consumers_on_several_vcpus,
    wakes_from_other_threads_are_not_lost,
    completions_reach_several_vcpus,
    parked_vcpu_takes_work_spawned_elsewhere,
    local_coroutines_stay_on_their_thread,
    released_vcpu_leaves_its_work_to_others,
}

async fn main() -> isize {
    run_all(TESTS).await
}

async fn coroutines_run_on_every_vcpu() -> Outcome {
    let cpus = [alloc_cpu(), alloc_cpu(), alloc_cpu()];
    let seen = Arc::new(AtomicU64::new(0));
    let limit = now() + 20 * ticks_per_second();
    let mut handles = Vec::new();
    for _ in 0..8 {
        let seen = seen.clone();
        let visit = async move {
            while seen.load(SeqCst).count_ones() < 4 && now() < limit {
                seen.fetch_or(1 << thread::index(), SeqCst);
                yield_now().await;
            }
        };
        handles.push(spawn(visit, None).map_err(message)?);
    }
    for handle in handles {
        handle.await;
    }
    let seen = seen.load(SeqCst);
    ensure!(seen.count_ones() == 4, "ran on threads {seen:#b}");
    for cpu in cpus {
        cpu.map_err(message)?.release().map_err(message)?;
    }
    Ok(())
}

struct Channel {
    state: Mutex<State>,
}

struct State {
    items: VecDeque<u64>,
    /// Ids of the coroutines that wait until the items change.
    waiting: VecDeque<u64>,
}

impl Channel {
    const CAPACITY: usize = 4;

    async fn put(&self, item: u64) {
        poll_fn(|_| {
            let mut state = self.state.lock();
            if state.items.len() >= Self::CAPACITY {
                state.waiting.push_back(current());
                return Poll::Pending;
            }
            state.items.push_back(item);
            self.wake_all(state);
            Poll::Ready(())
        })
        .await;
    }

    async fn take(&self) -> u64 {
        poll_fn(|_| {
            let mut state = self.state.lock();
            let Some(item) = state.items.pop_front() else {
                state.waiting.push_back(current());
                return Poll::Pending;
            };
            self.wake_all(state);
            Poll::Ready(item)
        })
        .await
    }

    fn wake_all(&self, mut state: os_user::sync::MutexGuard<'_, State>) {
        let waiting = core::mem::take(&mut state.waiting);
        drop(state);
        for cid in waiting {
            coroutine::wake(cid);
        }
    }
}

async fn producers_and_consumers_on_several_vcpus() -> Outcome {
    const ITEMS_PER_COROUTINE: u64 = 300;
    let cpus = [alloc_cpu(), alloc_cpu()];
    let channel = Arc::new(Channel {
        state: Mutex::new(State {
            items: VecDeque::new(),
            waiting: VecDeque::new(),
        }),
    });
    let mut producers = Vec::new();
    let mut consumers = Vec::new();
    for n in 0..4 {
        let sink = channel.clone();
        let produce = async move {
            for item in n * ITEMS_PER_COROUTINE..(n + 1) * ITEMS_PER_COROUTINE {
                sink.put(item).await;
            }
        };
        producers.push(spawn(produce, Some(33)).map_err(message)?);
        let source = channel.clone();
        let consume = async move {
            let mut sum = 0;
            for _ in 0..ITEMS_PER_COROUTINE {
                sum += source.take().await;
            }
            sum
        };
        consumers.push(spawn(consume, Some(34)).map_err(message)?);
    }
    for producer in producers {
        producer.await.ok_or("a producer was cancelled")?;
    }
    let mut sum = 0;
    for consumer in consumers {
        sum += consumer.await.ok_or("a consumer was cancelled")?;
    }
    let items = 4 * ITEMS_PER_COROUTINE;
    ensure!(sum == items * (items - 1) / 2, "the sum is {sum}");
    for cpu in cpus {
        cpu.map_err(message)?.release().map_err(message)?;
    }
    Ok(())
}

/// Threads without a vCPU wake a coroutine on a vCPU, and no wake is lost.
async fn wakes_from_other_threads_are_not_lost() -> Outcome {
    const WAKES_PER_THREAD: u32 = 2_000;
    let sent = Arc::new(AtomicU32::new(0));
    let receiver = {
        let sent = sent.clone();
        spawn(
            poll_fn(move |_| match sent.load(Acquire) {
                count if count == 3 * WAKES_PER_THREAD => Poll::Ready(()),
                _ => Poll::Pending,
            }),
            Some(20),
        )
    };
    let receiver = receiver.map_err(message)?;
    let cid = receiver.cid();
    let mut threads = Vec::new();
    for _ in 0..3 {
        let sent = sent.clone();
        let send = move || {
            for n in 0..WAKES_PER_THREAD {
                sent.fetch_add(1, SeqCst);
                coroutine::wake(cid);
                if n % 100 == 0 {
                    sleep_micros(50);
                }
            }
        };
        threads.push(thread::spawn(send).map_err(message)?);
    }
    ensure!(receiver.await.is_some(), "the receiver was cancelled");
    for thread in threads {
        thread.join().map_err(message)?;
    }
    Ok(())
}

/// While reads and writes are in flight on several vCPUs, each completion wakes its coroutine.
async fn completions_reach_several_vcpus() -> Outcome {
    let cpus = [alloc_cpu(), alloc_cpu()];
    let mut handles = Vec::new();
    for _ in 0..4 {
        let pipe = pipe().map_err(message)?;
        let writer = async move {
            for n in 0..100u8 {
                let (result, _) = write!(pipe.writer, vec![n], current()).await;
                if result != Ok(1) {
                    return false;
                }
            }
            sys::close(pipe.writer).is_ok()
        };
        let reader = async move {
            let mut next = 0;
            loop {
                let (result, bytes) = read!(pipe.reader, vec![0; 7], current()).await;
                match result {
                    Ok(0) => break,
                    Ok(count) => {
                        for byte in &bytes[..count] {
                            if *byte != next {
                                return false;
                            }
                            next += 1;
                        }
                    }
                    Err(_) => return false,
                }
            }
            next == 100 && sys::close(pipe.reader).is_ok()
        };
        handles.push(spawn(writer, Some(33)).map_err(message)?);
        handles.push(spawn(reader, Some(34)).map_err(message)?);
    }
    for handle in handles {
        ensure!(
            handle.await == Some(true),
            "a transfer through a pipe has failed"
        );
    }
    for cpu in cpus {
        cpu.map_err(message)?.release().map_err(message)?;
    }
    Ok(())
}

/// A thread spawns a coroutine while another vCPU of the process is parked. The parked vCPU wakes
/// up and runs the coroutine.
async fn parked_vcpu_takes_work_spawned_elsewhere() -> Outcome {
    let cpu = alloc_cpu().map_err(message)?;
    // Wait until the vCPU has parked.
    sleep_micros(20_000);
    let own_thread = thread::index();
    // The coroutine is more urgent than this one. Otherwise it would be offered to other vCPUs only
    // after this poll.
    let mut handle = spawn(async { thread::index() }, Some(20)).map_err(message)?;
    // Meanwhile this thread serves no other coroutine.
    let limit = now() + 10 * ticks_per_second();
    let ran = loop {
        let seen = poll_fn(|cx| Poll::Ready(Pin::new(&mut handle).poll(cx))).await;
        match seen {
            Poll::Ready(ran) => break ran,
            Poll::Pending if now() > limit => break None,
            Poll::Pending => sleep_micros(100),
        }
    };
    ensure!(
        ran.is_some_and(|thread| thread != own_thread),
        "ran on {ran:?}"
    );
    cpu.release().map_err(message)
}

async fn local_coroutines_stay_on_their_thread() -> Outcome {
    let cpus = [alloc_cpu(), alloc_cpu()];
    let own_thread = thread::index();
    let mut handles = Vec::new();
    for _ in 0..4 {
        let stay = async move {
            for _ in 0..200 {
                if thread::index() != own_thread {
                    return false;
                }
                yield_now().await;
            }
            true
        };
        handles.push(spawn_local(stay, None).map_err(message)?);
    }
    for handle in handles {
        ensure!(handle.await == Some(true), "a coroutine has moved");
    }
    for cpu in cpus {
        cpu.map_err(message)?.release().map_err(message)?;
    }
    Ok(())
}

async fn released_vcpu_leaves_its_work_to_others() -> Outcome {
    let done = Arc::new(AtomicU32::new(0));
    for _ in 0..5 {
        let cpu = alloc_cpu().map_err(message)?;
        for _ in 0..20 {
            let done = done.clone();
            let work = async move {
                for _ in 0..10 {
                    yield_now().await;
                }
                done.fetch_add(1, Relaxed);
            };
            drop(spawn(work, Some(33)).map_err(message)?);
        }
        yield_now().await;
        cpu.release().map_err(message)?;
    }
    let limit = now() + 10 * ticks_per_second();
    while done.load(Relaxed) != 100 && now() < limit {
        sleep(100).await;
    }
    let done = done.load(Relaxed);
    ensure!(done == 100, "{done} of 100 coroutines are done");
    Ok(())
}
