//! Tests theorem 2 (d) of `docs/preemption-proofs.md`. A *suspended* coroutine was interrupted in
//! the middle of a poll. A *fresh* coroutine is ready and was not interrupted. Once per
//! `suspended_delay`, a suspended coroutine of a level goes before the fresh ones of that level,
//! however many are suspended.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use crate::support::{Server, at, domain, run, yield_now};
use proptest::prelude::*;
use upshift_core::{Config, CoroutineId, Picked, QueueEnd};

/// Resumptions while fresh coroutines were ready, each with its time, its length and the coroutine.
#[derive(Default)]
struct Resumptions(Vec<(u64, u64, CoroutineId)>);

/// Runs a number of suspended coroutines beside a fresh one of their level that is always ready. A
/// suspended coroutine runs for a time taken from `turns` when it is resumed; the polls of the
/// fresh one take the times in `polls`. Returns the times at which the fresh coroutine began and
/// ended, and the resumptions.
fn contend(
    suspended: usize,
    suspended_delay: u64,
    polls: &[u64],
    turns: &[u64],
) -> (u64, u64, Resumptions) {
    let domain = domain(Config {
        suspended_delay,
        ..Config::default()
    });
    let vcpu = domain.add_vcpu().unwrap();
    let runs = Arc::new(Mutex::new(Resumptions::default()));
    let remaining_polls = Arc::new(Mutex::new(polls.to_vec()));
    for _ in 0..suspended {
        let (runs, remaining_polls, server, d) = (
            runs.clone(),
            remaining_polls.clone(),
            Server::of(&vcpu),
            domain.clone(),
        );
        let turns = turns.to_vec();
        let long = async move {
            let executor = server.get();
            // SAFETY: the poll continues when it has been picked again, after the fresh coroutine
            // has ended.
            let suspend = || unsafe { executor.suspend_current(QueueEnd::Tail) }.unwrap();
            let own_id = suspend();
            loop {
                match executor.pick(None).expect("all are ready") {
                    Picked::Poll(running) => drop(running.poll()),
                    Picked::Resume { id, .. } if remaining_polls.lock().unwrap().is_empty() => {
                        if id == own_id {
                            return;
                        }
                        suspend();
                    }
                    Picked::Resume { id, .. } => {
                        let all = &mut runs.lock().unwrap().0;
                        let time = turns[all.len() % turns.len()];
                        all.push((d.host().time.fetch_add(time, Relaxed), time, id));
                        suspend();
                    }
                }
            }
        };
        domain.spawn(long, at(20)).unwrap().detach();
    }
    let d = domain.clone();
    let (span, times) = (Arc::new(Mutex::new((0, 0))), remaining_polls);
    let shared_span = span.clone();
    let fresh = async move {
        shared_span.lock().unwrap().0 = d.host().time.load(Relaxed);
        loop {
            let Some(time) = times.lock().unwrap().pop() else {
                break;
            };
            shared_span.lock().unwrap().1 = d.host().time.fetch_add(time, Relaxed) + time;
            yield_now().await;
        }
    };
    domain.spawn(fresh, at(20)).unwrap().detach();
    run(&vcpu, 100_000);
    let (begun, ended) = *span.lock().unwrap();
    let runs = std::mem::take(&mut *runs.lock().unwrap());
    (begun, ended, runs)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn suspended_coroutines_share_one_turn_per_suspended_delay(
        suspended in 1..8_usize,
        suspended_delay in 10..300_u64,
        polls in prop::collection::vec(1..100_u64, 1..200),
        turns in prop::collection::vec(1..50_u64, 1..10),
    ) {
        let (begun, ended, Resumptions(runs)) = contend(suspended, suspended_delay, &polls, &turns);
        let poll = *polls.iter().max().unwrap();
        let turn = *turns.iter().max().unwrap();
        // Resumptions before the first poll of the fresh coroutine and after its last do not count.
        let runs: Vec<_> =
            runs.into_iter().filter(|run| (begun..ended).contains(&run.0)).collect();
        // The fresh coroutine gets the rest of the time, since there is at most one resumption per
        // delay, with a margin of a poll and a turn.
        for pair in runs.windows(2) {
            let interval = pair[1].0 - pair[0].0;
            prop_assert!(
                interval + poll + turn >= suspended_delay,
                "resumptions at an interval of {interval} ticks: {pair:?}"
            );
        }
        // A suspended coroutine waits at most until each of the other suspended ones has run once,
        // with a delay and a fresh poll before each of them.
        let max_wait = suspended as u64 * (suspended_delay + poll + turn) + suspended_delay + poll;
        let mut last_ends = std::collections::HashMap::new();
        for &(when, time, id) in &runs {
            let since = last_ends.insert(id, when + time).unwrap_or(begun);
            let wait = when - since;
            prop_assert!(wait <= max_wait, "a wait of {wait} ticks, and the bound is {max_wait}");
        }
        if ended - begun > max_wait {
            let time = ended - begun;
            prop_assert_eq!(last_ends.len(), suspended, "one was never resumed in {} ticks", time);
        }
    }
}
