//! The laws of the scheduler (`ARCHITECTURE.md`) across harts, a test for each. Threads of all
//! levels compute and sleep by turns that a seed sets, and record the times of their turns and
//! their observations; the laws are checked against the records.
//!
//! They assert times, so they are for a machine on which time counts instructions, with the number
//! of harts in the argument (`os-runner`: `icount smp 4 laws`). A hart's turn takes 10 microseconds
//! there.

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

/// Ticks in a microsecond.
const MICROS: u64 = 10;
/// Threads, and turns of each.
const THREADS: usize = 12;
const TURNS: usize = 6;
/// Levels of the threads, and of the test itself.
const LEVELS: [u8; THREADS] = [8, 12, 16, 20, 20, 24, 28, 28, 32, 40, 48, 56];
const TESTS_LEVEL: u8 = 4;

/// Number of records.
const SEEDS: u64 = 3;

static RECORDS: SpinLock<Option<Vec<Vec<Turn>>>> = SpinLock::new(None);

/// Number of harts.
static HARTS: AtomicU64 = AtomicU64::new(4);

async fn main() -> isize {
    let argument = core::str::from_utf8(os_user::argument()).unwrap_or("");
    HARTS.store(argument.parse().unwrap_or(4), SeqCst);
    reprio(current(), TESTS_LEVEL);
    run_all(TESTS).await
}

/// Bound of the laws, in ticks: many turns of all harts, and less than a quantum, which is 5
/// milliseconds.
fn bound() -> u64 {
    500 * MICROS * HARTS.load(SeqCst)
}

/// Computes for about `micros` microseconds, without a call to the kernel.
fn compute(micros: u64) {
    // Four instructions each, at a nanosecond an instruction.
    for n in 0..250 * micros {
        core::hint::black_box(n);
    }
}

/// A span of time, in ticks.
type Span = (u64, u64);

fn overlap(a: Span, b: Span) -> u64 {
    a.1.min(b.1).saturating_sub(a.0.max(b.0))
}

/// A turn from the end of a sleep on, as its thread has recorded it.
struct Turn {
    level: u8,
    /// Time at which the thread became ready.
    ready: u64,
    /// Spans in which the thread ran.
    ran: Vec<Span>,
    /// Levels that this thread saw as ready while it ran.
    seen: Vec<(u64, u64)>,
}

impl Turn {
    /// Returns the spans in which the thread did not run, though it was ready. Where harts take
    /// turns, others run in between for that long: such gaps count as running.
    fn waited(&self) -> Vec<Span> {
        let ends = core::iter::once(self.ready).chain(self.ran.iter().map(|ran| ran.1));
        let begins = self.ran.iter().map(|ran| ran.0);
        ends.zip(begins).collect()
    }
}

/// Computes in a turn, for `steps` steps, and records the spans in which it ran.
fn take_turn(level: u8, ready: u64, steps: u64) -> Turn {
    // The turns of all harts, the idle ones between them included.
    let gap = 200 * MICROS * HARTS.load(SeqCst).max(2);
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

/// Returns the records of the threads of a seed.
async fn record(seed: u64) -> Result<Vec<Turn>, String> {
    let over = Arc::new(AtomicUsize::new(0));
    let start = now() + 3_000 * MICROS;
    let mut threads = Vec::new();
    for (n, level) in LEVELS.into_iter().enumerate() {
        let over = over.clone();
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
                ready = now().max(ready) + below(4_000) * MICROS;
                let _ = sys::sleep_until(ready as usize);
                turns.push(take_turn(level, ready, 10 + below(250)));
            }
            over.fetch_add(1, SeqCst);
            turns
        };
        threads.push(thread::spawn(body).map_err(message)?);
    }
    // Joining lends, so not before.
    while over.load(SeqCst) < THREADS {
        sleep(5_000).await;
    }
    let mut turns = Vec::new();
    for thread in threads {
        turns.extend(thread.join().map_err(message)?);
    }
    Ok(turns)
}

/// Returns the longest time for which a thread has waited while a less urgent one ran.
fn out_of_order(turns: &[Turn]) -> u64 {
    let of = |one: &Turn, waited: Span| {
        let others = turns.iter().filter(|other| other.level > one.level);
        let ran = others.flat_map(|other| other.ran.iter().map(|ran| overlap(*ran, waited)));
        ran.max().unwrap_or(0)
    };
    maximum(turns, of)
}

/// Returns the longest time for which a thread has waited while a hart was idle.
fn stranded(turns: &[Turn]) -> u64 {
    let harts = HARTS.load(SeqCst) as usize;
    let of = |_: &Turn, waited: Span| idle(turns, waited, harts);
    maximum(turns, of)
}

/// Returns the longest time for which a thread has waited while not all harts ran threads as
/// urgent.
fn unserved(turns: &[Turn]) -> u64 {
    let harts = HARTS.load(SeqCst) as usize;
    let of = |one: &Turn, waited: Span| {
        let urgent: Vec<_> = turns
            .iter()
            .filter(|turn| turn.level <= one.level)
            .collect();
        idle(urgent, waited, harts)
    };
    maximum(turns, of)
}

/// Returns the longest time at a stretch, within a span, in which fewer of these ran than there are
/// harts.
fn idle<'a>(turns: impl IntoIterator<Item = &'a Turn>, within: Span, harts: usize) -> u64 {
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

fn maximum(turns: &[Turn], of: impl Fn(&Turn, Span) -> u64) -> u64 {
    let all = turns
        .iter()
        .flat_map(|turn| turn.waited().into_iter().map(|at| of(turn, at)));
    all.max().unwrap_or(0)
}

/// Returns the longest time for which a thread was ready and not among the levels that others saw.
fn inconsistent(turns: &[Turn]) -> u64 {
    let mut seen: Vec<_> = turns.iter().flat_map(|turn| &turn.seen).collect();
    seen.sort_unstable();
    let of = |one: &Turn, waited: Span| {
        let from = seen.partition_point(|seen| seen.0 <= waited.0);
        let within = seen[from..].iter().take_while(|seen| seen.0 < waited.1);
        let (mut longest, mut begin) = (0, None);
        for (time, levels) in within {
            let stale = levels & 1 << one.level == 0;
            begin = stale.then(|| begin.unwrap_or(*time));
            longest = longest.max(begin.map_or(0, |begin| time - begin));
        }
        longest
    };
    maximum(turns, of)
}

/// Returns the records of some seeds: the same for all laws.
async fn records() -> Result<Vec<Vec<Turn>>, String> {
    let mut records = RECORDS.lock().take().unwrap_or_default();
    for seed in records.len() as u64 + 1..=SEEDS {
        records.push(record(seed).await?);
    }
    Ok(records)
}

/// Checks the records of some seeds against a law.
async fn check_law(law: &str, bound: u64, late: fn(&[Turn]) -> u64) -> Outcome {
    let mut longest = 0;
    let records = records().await?;
    for (number, turns) in records.iter().enumerate() {
        let late = late(turns);
        ensure!(
            late < bound,
            "record {number}: {} µs, the bound is {} µs",
            late / MICROS,
            bound / MICROS
        );
        longest = longest.max(late);
    }
    *RECORDS.lock() = Some(records);
    println!("figure: {law}: at most {} µs", longest / MICROS);
    Ok(())
}

async fn order_across_harts() -> Outcome {
    check_law("order", bound(), out_of_order).await
}

async fn conservation_across_harts() -> Outcome {
    check_law("conservation", bound(), stranded).await
}

/// The bound covers the time until a less urgent thread has left a hart, and until a hart that has
/// become idle takes work.
async fn progress_across_harts() -> Outcome {
    check_law("progress", 2 * bound(), unserved).await
}

async fn truth_across_harts() -> Outcome {
    check_law("truth", bound(), inconsistent).await
}

/// Programs of level 25 compute on all harts. A thread of level 40 has a lock that level 10 waits
/// for; it finishes its work, of a known length, as if it were of level 10.
async fn progress_of_lock_waiters() -> Outcome {
    const WORK: u64 = 2_000;
    for round in 0..4u64 {
        let over = Arc::new(AtomicUsize::new(0));
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
            let over = over.clone();
            let hog = thread::spawn(move || {
                let _ = sys::set_level(25);
                let limit = time() + 100_000 * MICROS;
                while over.load(SeqCst) == 0 && time() < limit {
                    compute(10);
                }
            });
            hogs.push(hog.map_err(message)?);
        }
        sleep(500 * round).await;
        let wanting = {
            let lock = lock.clone();
            thread::spawn(move || {
                let _ = sys::set_level(10);
                let begin = now();
                drop(lock.lock());
                now() - begin
            })
        };
        let took = wanting.map_err(message)?.join().map_err(message)?;
        over.store(1, SeqCst);
        for hog in hogs {
            hog.join().map_err(message)?;
        }
        holder.map_err(message)?.join().map_err(message)?;
        // Where harts take turns, the holder has one of `turns` turns.
        let turns = HARTS.load(SeqCst) + 1;
        let most = WORK * MICROS * turns + bound();
        ensure!(took < most, "round {round}: {} µs", took / MICROS);
    }
    Ok(())
}

/// The checks can fail: with levels other than those of the threads, they do.
async fn a_forged_record_breaks_the_laws() -> Outcome {
    let mut turns = record(SEEDS + 1).await?;
    ensure!(
        out_of_order(&turns) < bound(),
        "the record is out of order itself"
    );
    for turn in &mut turns {
        turn.level = 63 - turn.level;
    }
    let found = [out_of_order(&turns), unserved(&turns), inconsistent(&turns)];
    ensure!(
        found.iter().all(|late| *late > bound()),
        "nothing is found: {found:?}"
    );
    // This turn became ready sooner than recorded.
    let first = turns.iter_mut().min_by_key(|turn| turn.ready);
    if let Some(first) = first {
        first.ready -= 2 * bound();
    }
    let found = stranded(&turns);
    ensure!(found > bound(), "nothing is stranded: {found}");
    Ok(())
}
