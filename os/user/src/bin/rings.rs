//! Four rings of 128 coroutines each, on one to five vCPUs: messages go round each
//! ring, and every coroutine takes them out of its mailbox, looks at them and puts
//! them into the next one's.
//!
//! The published system takes six times as long with five pollers on four harts as
//! with four, because one of them is always stopped where others wait for it. `rings`
//! prints the median time for each number of vCPUs, of several runs in turn, and the
//! ratio of five to four, in thousandths: with one message in each ring, where the
//! fifth vCPU has nothing to do, and with 16, where all have. `os-runner rings` boots
//! it. A message that is lost never comes round, and the program does not end.

#![no_std]
#![no_main]

extern crate alloc;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::poll_fn;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::task::Poll;

use os_user::coroutine::{JoinHandle, spawn, wake};
use os_user::cpu::{Cpu, alloc_cpu};
use os_user::{Error, now, println, ticks_per_second};

os_user::coroutine_entry!(main);

const RINGS: usize = 4;
const LINKS: usize = 128;
const MOST_CPUS: usize = 5;

/// Where a coroutine gets its messages, and its name.
struct Mailbox {
    /// Messages that it has not taken.
    waiting: AtomicU64,
    owner: AtomicU64,
}

type Ring = Arc<[Mailbox]>;

/// How often all messages go round, and how often that is measured.
fn sizes(messages: u64) -> (u64, usize) {
    match os_user::argument() {
        b"short" => (48 / messages, 3),
        _ => (320 / messages, 9),
    }
}

/// What a coroutine does with a message.
fn look_at(message: u64) -> u64 {
    (0..20).fold(message, |seen, n| core::hint::black_box(seen ^ n) ^ n)
}

impl Mailbox {
    fn take(&self) -> Option<u64> {
        let one_less = |waiting: u64| waiting.checked_sub(1);
        self.waiting.fetch_update(Acquire, Relaxed, one_less).ok()
    }

    fn put(&self) {
        self.waiting.fetch_add(1, Release);
        // In the last turn it may have ended.
        wake(self.owner.load(Relaxed));
    }
}

/// A coroutine of a ring: passes so many messages on.
async fn link(ring: Ring, number: usize, messages: u64) -> u64 {
    let (mine, next) = (&ring[number], &ring[(number + 1) % LINKS]);
    for _ in 0..messages {
        let taken = poll_fn(|_| match mine.take() {
            None => Poll::Pending,
            Some(message) => Poll::Ready(message),
        });
        look_at(taken.await);
        next.put();
    }
    messages
}

fn start_ring(messages: u64) -> Result<(Ring, Vec<JoinHandle<u64>>), Error> {
    let mailbox = || Mailbox {
        waiting: AtomicU64::new(0),
        owner: AtomicU64::new(0),
    };
    let ring: Ring = (0..LINKS).map(|_| mailbox()).collect();
    let mut links = Vec::new();
    for number in 0..LINKS {
        let link = spawn(link(ring.clone(), number, messages), None)?;
        ring[number].owner.store(link.cid(), Relaxed);
        links.push(link);
    }
    Ok((ring, links))
}

/// Ticks for so many turns of so many messages in each ring.
async fn measure(messages: u64, turns: u64) -> Result<u64, Error> {
    let mut rings = Vec::new();
    for _ in 0..RINGS {
        rings.push(start_ring(messages * turns)?);
    }
    let start = now();
    for (ring, _) in &rings {
        for n in 0..messages as usize {
            ring[n * LINKS / messages as usize].put();
        }
    }
    for (_, links) in rings {
        for link in links {
            link.await.ok_or(Error::NoProcess)?;
        }
    }
    Ok(now() - start)
}

async fn with_cpus(count: usize, messages: u64, turns: u64) -> Result<u64, Error> {
    let mut more: Vec<Cpu> = Vec::new();
    for _ in 1..count {
        more.push(alloc_cpu()?);
    }
    let time = measure(messages, turns).await;
    for cpu in more {
        cpu.release()?;
    }
    time
}

async fn compare(messages: u64) -> Result<(), Error> {
    let (turns, measurements) = sizes(messages);
    let mut times: [Vec<u64>; MOST_CPUS] = Default::default();
    for _ in 0..measurements {
        for count in 1..=MOST_CPUS {
            times[count - 1].push(with_cpus(count, messages, turns).await?);
        }
    }
    let medians = times.map(|mut times| {
        times.sort_unstable();
        times[times.len() / 2]
    });
    for (less, ticks) in medians.iter().enumerate() {
        let micros = ticks * 1_000_000 / ticks_per_second();
        println!(
            "figure: rings of {messages}: {} vCPUs: {micros} microseconds",
            less + 1
        );
    }
    let ratio = medians[4] * 1000 / medians[3].max(1);
    println!("figure: rings of {messages}: 5 vCPUs to 4: {ratio} thousandths");
    Ok(())
}

async fn main() -> isize {
    for messages in [1, 16] {
        if let Err(error) = compare(messages).await {
            println!("rings: {error}");
            return 1;
        }
    }
    0
}
