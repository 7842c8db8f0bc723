//! Tests of the laws of the scheduler (`ARCHITECTURE.md`) across harts, a test for each law.
//! Threads of all levels alternately compute and sleep for times that a seed determines, and record
//! when they ran and which levels they saw as ready; the laws are checked against the records.
//!
//! The tests assert times, so they need a machine whose clock counts instructions, with the number
//! of harts in the argument (the machine `icount smp 4 laws` of `os-runner test`). The emulator
//! runs the harts of this machine in turn, for at most 10 microseconds each.

#![no_std]
#![no_main]

extern crate alloc;

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::SeqCst;
use core::sync::atomic::{AtomicU64, AtomicUsize};

use os_user::coroutine::{current, reprio};
use os_user::cpu::{ready_levels, time};
use os_user::lock::SpinLock;
use os_user::sync::Mutex;
use os_user::testing::{Outcome, message, run_all};
use os_user::{ensure, now, println, sleep, sys, tests, thread};

os_user::coroutine_entry!(main);

tests! {
    order_across_harts,
    conservation_across_harts,
    progress_across_harts,
    truth_across_harts,
    progress_of_lock_waiters,
    a_forged_record_breaks_the_laws,
}

/// Number of ticks in a microsecond.
const TICKS_PER_MICRO: u64 = 10;
/// Number of threads that are recorded.
const THREADS: usize = 12;
/// Number of activations of each thread.
const TURNS: usize = 6;
/// Levels of the threads.
const LEVELS: [u8; THREADS] = [8, 12, 16, 20, 20, 24, 28, 28, 32, 40, 48, 56];
/// Level of the tests, more urgent than all threads.
const TESTS_LEVEL: u8 = 4;

/// Number of seeds. Each seed determines a record of the threads.
const SEEDS: u64 = 3;

/// The records of the seeds so far.
static RECORDS: SpinLock<Option<Vec<Vec<Turn>>>> = SpinLock::new(None);

/// Number of harts of the machine.
static HARTS: AtomicU64 = AtomicU64::new(4);

async fn main() -> isize {
    let argument = core::str::from_utf8(os_user::argument()).unwrap_or("");
    HARTS.store(argument.parse().unwrap_or(4), SeqCst);
    reprio(current(), TESTS_LEVEL);
    run_all(TESTS).await
}

/// Longest delay that the laws allow, in ticks: many turns of all harts, and less than a quantum of
/// 5 milliseconds.
fn bound() -> u64 {
    500 * TICKS_PER_MICRO * HARTS.load(SeqCst)
}

/// Computes for about `micros` microseconds, without a call to the kernel.
fn compute(micros: u64) {
    // Each iteration takes four instructions, at a nanosecond an instruction.
    for n in 0..250 * micros {
        core::hint::black_box(n);
    }
}

/// A span of time, in ticks.
type Span = (u64, u64);

fn overlap(a: Span, b: Span) -> u64 {
    a.1.min(b.1).saturating_sub(a.0.max(b.0))
}

/// An activation of a thread, from the end of a sleep on, as the thread has recorded it. Not to be
/// confused with the turns in which the emulator runs the harts.
struct Turn {
    level: u8,
    /// Time at which the thread became ready, in ticks.
    ready: u64,
    /// Spans in which the thread ran.
    ran: Vec<Span>,
    /// Times, and bitmaps of the levels that this thread saw as ready while it ran.
    seen: Vec<(u64, u64)>,
}

impl Turn {
    /// Returns the spans in which the thread did not run, although it was ready. Where harts take
    /// turns, the other harts run in between for that long, so such gaps count as running.
    fn waited(&self) -> Vec<Span> {
        let ends = core::iter::once(self.ready).chain(self.ran.iter().map(|ran| ran.1));
        let begins = self.ran.iter().map(|ran| ran.0);
        ends.zip(begins).collect()
    }
}

/// Computes for `steps` steps, and records the spans in which the thread ran.
fn take_turn(level: u8, ready: u64, steps: u64) -> Turn {
    // The turns of all harts, including idle harts.
    let gap = 200 * TICKS_PER_MICRO * HARTS.load(SeqCst).max(2);
    let mut turn = Turn {
        level,
        ready,
        ran: Vec::with_capacity(64),
        seen: Vec::with_capacity(steps as usize),
    };
    for _ in 0..steps {
        let begin = time();
        match turn.ran.last_mut() {
            Some(last) if begin - last.1 < gap => last.1 = begin,
            _ => turn.ran.push((begin, begin)),
        }
        turn.seen.push((begin, ready_levels()));
        compute(20);
    }
    turn
}

/// Returns the records of the threads for a seed.
async fn record(seed: u64) -> Result<Vec<Turn>, String> {
    let finished = Arc::new(AtomicUsize::new(0));
    let start = now() + 3_000 * TICKS_PER_MICRO;
    let mut threads = Vec::new();
    for (n, level) in LEVELS.into_iter().enumerate() {
        let finished = finished.clone();
        let mut word = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) + n as u64 + 1;
        let mut below = move |limit: u64| {
            word ^= word << 13;
            word ^= word >> 7;
            word ^= word << 17;
            (word >> 16) % limit
        };
        let body = move || {
            let _ = sys::set_level(usize::from(level));
            let mut turns = Vec::with_capacity(TURNS);
            let mut ready = start;
            for _ in 0..TURNS {
                ready = now().max(ready) + below(4_000) * TICKS_PER_MICRO;
                let _ = sys::sleep_until(ready as usize);
                turns.push(take_turn(level, ready, 10 + below(250)));
            }
            finished.fetch_add(1, SeqCst);
            turns
        };
        threads.push(thread::spawn(body).map_err(message)?);
    }
    // A join lends the level of its caller, so it must not start earlier.
    while finished.load(SeqCst) < THREADS {
        sleep(5_000).await;
    }
    let mut turns = Vec::new();
    for thread in threads {
        turns.extend(thread.join().map_err(message)?);
    }
    Ok(turns)
}

/// Returns the longest time for which a thread waited while a less urgent thread ran.
fn longest_inversion(turns: &[Turn]) -> u64 {
    let delay_of = |waiter: &Turn, waited: Span| {
        let others = turns.iter().filter(|other| other.level > waiter.level);
        let ran = others.flat_map(|other| other.ran.iter().map(|ran| overlap(*ran, waited)));
        ran.max().unwrap_or(0)
    };
    longest_delay(turns, delay_of)
}

/// Returns the longest time for which a thread waited while a hart was idle.
fn longest_wait_beside_an_idle_hart(turns: &[Turn]) -> u64 {
    let harts = HARTS.load(SeqCst) as usize;
    let delay_of = |_: &Turn, waited: Span| longest_idle_time(turns, waited, harts);
    longest_delay(turns, delay_of)
}

/// Returns the longest time for which a thread waited while not every hart ran a thread that is at
/// least as urgent.
fn longest_unserved_wait(turns: &[Turn]) -> u64 {
    let harts = HARTS.load(SeqCst) as usize;
    let delay_of = |waiter: &Turn, waited: Span| {
        let urgent: Vec<_> = turns
            .iter()
            .filter(|turn| turn.level <= waiter.level)
            .collect();
        longest_idle_time(urgent, waited, harts)
    };
    longest_delay(turns, delay_of)
}

/// Returns the longest uninterrupted time within a span in which fewer of the threads ran than
/// there are harts.
fn longest_idle_time<'a>(
    turns: impl IntoIterator<Item = &'a Turn>,
    within: Span,
    harts: usize,
) -> u64 {
    let ran = turns.into_iter().flat_map(|turn| &turn.ran);
    let ran: Vec<Span> = ran
        .filter(|ran| overlap(**ran, within) > 0)
        .copied()
        .collect();
    let mut edges: Vec<u64> = ran.iter().flat_map(|ran| [ran.0, ran.1]).collect();
    edges.extend([within.0, within.1]);
    edges.retain(|edge| (within.0..=within.1).contains(edge));
    edges.sort_unstable();
    let (mut longest, mut begin) = (0, None);
    for piece in edges.windows(2).filter(|piece| piece[0] < piece[1]) {
        let piece = (piece[0], piece[1]);
        let running = ran.iter().filter(|ran| overlap(**ran, piece) > 0).count();
        begin = (running < harts).then(|| begin.unwrap_or(piece.0));
        longest = longest.max(begin.map_or(0, |begin| piece.1 - begin));
    }
    longest
}

/// Returns the longest delay of all waits, by `delay_of`.
fn longest_delay(turns: &[Turn], delay_of: impl Fn(&Turn, Span) -> u64) -> u64 {
    let all = turns
        .iter()
        .flat_map(|turn| turn.waited().into_iter().map(|span| delay_of(turn, span)));
    all.max().unwrap_or(0)
}

/// Returns the longest time for which a thread was ready but other threads did not see its level.
fn longest_hidden_wait(turns: &[Turn]) -> u64 {
    let mut seen: Vec<_> = turns.iter().flat_map(|turn| &turn.seen).collect();
    seen.sort_unstable();
    let delay_of = |waiter: &Turn, waited: Span| {
        let from = seen.partition_point(|seen| seen.0 <= waited.0);
        let within = seen[from..].iter().take_while(|seen| seen.0 < waited.1);
        let (mut longest, mut begin) = (0, None);
        for (time, levels) in within {
            let is_hidden = levels & 1 << waiter.level == 0;
            begin = is_hidden.then(|| begin.unwrap_or(*time));
            longest = longest.max(begin.map_or(0, |begin| time - begin));
        }
        longest
    };
    longest_delay(turns, delay_of)
}

/// Returns the records of [`SEEDS`] seeds, which all laws share.
async fn records() -> Result<Vec<Vec<Turn>>, String> {
    let mut records = RECORDS.lock().take().unwrap_or_default();
    for seed in records.len() as u64 + 1..=SEEDS {
        records.push(record(seed).await?);
    }
    Ok(records)
}

/// Checks a law against the records.
async fn check_law(law: &str, bound: u64, delay_of: fn(&[Turn]) -> u64) -> Outcome {
    let mut longest = 0;
    let records = records().await?;
    for (number, turns) in records.iter().enumerate() {
        let delay = delay_of(turns);
        ensure!(
            delay < bound,
            "record {number}: {} µs, the bound is {} µs",
            delay / TICKS_PER_MICRO,
            bound / TICKS_PER_MICRO
        );
        longest = longest.max(delay);
    }
    *RECORDS.lock() = Some(records);
    println!("figure: {law}: at most {} µs", longest / TICKS_PER_MICRO);
    Ok(())
}

async fn order_across_harts() -> Outcome {
    check_law("order", bound(), longest_inversion).await
}

async fn conservation_across_harts() -> Outcome {
    check_law("conservation", bound(), longest_wait_beside_an_idle_hart).await
}

/// The bound covers the time until a less urgent thread has left a hart, and until an idle hart
/// takes work.
async fn progress_across_harts() -> Outcome {
    check_law("progress", 2 * bound(), longest_unserved_wait).await
}

async fn truth_across_harts() -> Outcome {
    check_law("truth", bound(), longest_hidden_wait).await
}

/// Threads of level 25, the hogs, compute on all harts. A thread of level 40 holds a lock for which
/// a thread of level 10 waits; the holder finishes its work, of a known length, as if it had level
/// 10.
async fn progress_of_lock_waiters() -> Outcome {
    /// Length of the holder's work, in microseconds.
    const WORK: u64 = 2_000;
    for round in 0..4u64 {
        let finished = Arc::new(AtomicUsize::new(0));
        let lock = Arc::new(Mutex::new(0));
        let begun = Arc::new(AtomicUsize::new(0));
        let holder = {
            let (lock, begun) = (lock.clone(), begun.clone());
            thread::spawn(move || {
                let _ = sys::set_level(40);
                let mut guard = lock.lock();
                begun.store(1, SeqCst);
                compute(WORK);
                *guard += 1;
            })
        };
        while begun.load(SeqCst) == 0 {
            sleep(100).await;
        }
        let mut hogs = Vec::new();
        for _ in 0..HARTS.load(SeqCst) {
            let finished = finished.clone();
            let hog = thread::spawn(move || {
                let _ = sys::set_level(25);
                let limit = time() + 100_000 * TICKS_PER_MICRO;
                while finished.load(SeqCst) == 0 && time() < limit {
                    compute(10);
                }
            });
            hogs.push(hog.map_err(message)?);
        }
        sleep(500 * round).await;
        let waiter = {
            let lock = lock.clone();
            thread::spawn(move || {
                let _ = sys::set_level(10);
                let begin = now();
                drop(lock.lock());
                now() - begin
            })
        };
        let took = waiter.map_err(message)?.join().map_err(message)?;
        finished.store(1, SeqCst);
        for hog in hogs {
            hog.join().map_err(message)?;
        }
        holder.map_err(message)?.join().map_err(message)?;
        // Where harts take turns, the holder gets one of `turns` turns.
        let turns = HARTS.load(SeqCst) + 1;
        let limit = WORK * TICKS_PER_MICRO * turns + bound();
        ensure!(took < limit, "round {round}: {} µs", took / TICKS_PER_MICRO);
    }
    Ok(())
}

/// The checks must fail if the records name levels other than those of the threads.
async fn a_forged_record_breaks_the_laws() -> Outcome {
    let mut turns = record(SEEDS + 1).await?;
    ensure!(
        longest_inversion(&turns) < bound(),
        "the record is out of order before the forgery"
    );
    for turn in &mut turns {
        turn.level = 63 - turn.level;
    }
    let delays = [
        longest_inversion(&turns),
        longest_unserved_wait(&turns),
        longest_hidden_wait(&turns),
    ];
    ensure!(
        delays.iter().all(|delay| *delay > bound()),
        "the checks found nothing: delays of {delays:?} ticks"
    );
    // Pretend that this activation became ready earlier than recorded.
    let first = turns.iter_mut().min_by_key(|turn| turn.ready);
    if let Some(first) = first {
        first.ready -= 2 * bound();
    }
    let delay = longest_wait_beside_an_idle_hart(&turns);
    ensure!(
        delay > bound(),
        "the check found no thread that waited beside an idle hart: {delay} ticks"
    );
    Ok(())
}
