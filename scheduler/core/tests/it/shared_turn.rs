//! Theorem 4 of `docs/preemption.md`: suspended coroutines of a level together go before fresh ones of it once in their patience.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use crate::support::{Server, at, domain, run, yield_now};
use proptest::prelude::*;
use upshift_core::{Config, CoroutineId, Picked, Place};

/// What went before fresh ones that were ready: when, for how long, and which.
#[derive(Default)]
struct Goes(Vec<(u64, u64, CoroutineId)>);

/// Lets `suspended` coroutines, each of which runs for a time of `turns` when it goes on, stand beside fresh ones of their level that are always
/// ready and run for `polls`, one after the other. The times at which the fresh ones began and ended, and what came of the others.
fn contend(suspended: usize, patience: u64, polls: &[u64], turns: &[u64]) -> (u64, u64, Goes) {
    let domain = domain(Config {
        patience,
        ..Config::default()
    });
    let vcpu = domain.add_vcpu().unwrap();
    let goes = Arc::new(Mutex::new(Goes::default()));
    let left = Arc::new(Mutex::new(polls.to_vec()));
    for _ in 0..suspended {
        let (goes, left, server, d) = (
            goes.clone(),
            left.clone(),
            Server::of(&vcpu),
            domain.clone(),
        );
        let turns = turns.to_vec();
        let long = async move {
            let executor = server.get();
            // SAFETY: the poll goes on when it has been picked again, after the fresh ones.
            let suspend = || unsafe { executor.suspend_current(Place::Tail) }.unwrap();
            let me = suspend();
            loop {
                match executor.pick(None).expect("all are ready") {
                    Picked::Poll(running) => drop(running.poll()),
                    Picked::Resume { id, .. } if left.lock().unwrap().is_empty() => {
                        if id == me {
                            return;
                        }
                        suspend();
                    }
                    Picked::Resume { id, .. } => {
                        let all = &mut goes.lock().unwrap().0;
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
    let (span, times) = (Arc::new(Mutex::new((0, 0))), left);
    let noted = span.clone();
    let fresh = async move {
        noted.lock().unwrap().0 = d.host().time.load(Relaxed);
        loop {
            let Some(time) = times.lock().unwrap().pop() else {
                break;
            };
            noted.lock().unwrap().1 = d.host().time.fetch_add(time, Relaxed) + time;
            yield_now().await;
        }
    };
    domain.spawn(fresh, at(20)).unwrap().detach();
    run(&vcpu, 100_000);
    let (begun, ended) = *span.lock().unwrap();
    let goes = std::mem::take(&mut *goes.lock().unwrap());
    (begun, ended, goes)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn suspended_coroutines_share_one_turn_in_their_patience(
        suspended in 1..8_usize,
        patience in 10..300_u64,
        polls in prop::collection::vec(1..100_u64, 1..200),
        turns in prop::collection::vec(1..50_u64, 1..10),
    ) {
        let (begun, ended, Goes(goes)) = contend(suspended, patience, &polls, &turns);
        let poll = *polls.iter().max().unwrap();
        let turn = *turns.iter().max().unwrap();
        // Those that go on when no fresh one is left, and before the first, say nothing.
        let goes: Vec<_> = goes.into_iter().filter(|go| (begun..ended).contains(&go.0)).collect();
        // What is fresh keeps the rest: at most one go in each patience.
        for pair in goes.windows(2) {
            let apart = pair[1].0 - pair[0].0;
            prop_assert!(apart + poll + turn >= patience, "{apart} apart: {pair:?}");
        }
        // None waits for more than its share of them: each in turn, once in the patience, a fresh poll and a turn.
        let most = suspended as u64 * (patience + poll + turn) + patience + poll;
        let mut last = std::collections::HashMap::new();
        for &(when, time, id) in &goes {
            let since = last.insert(id, when + time).unwrap_or(begun);
            prop_assert!(when - since <= most, "{} ns, and the bound is {most}", when - since);
        }
        if ended - begun > most {
            prop_assert_eq!(last.len(), suspended, "one never went on in {} ns", ended - begun);
        }
    }
}
