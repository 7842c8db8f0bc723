//! Compares the scheduler with a naive model, which is a list of coroutines that is searched, under
//! random operations.
//!
//! With one vCPU the model predicts the coroutine of every poll, with two vCPUs only its level.
//! After each operation the bitmap is compared with the set of levels that have a ready coroutine.
//! The number of polls of each coroutine is compared with the number that its wakes account for.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use crate::support::{TestHost, at, domain, keep_place, level, run, serving, step};
use proptest::prelude::*;
use upshift_core::{Config, CoroutineId, Dead, Domain, Executor, JoinHandle, SpawnOptions};

/// Largest number of operations in a test case.
const OPS: usize = if cfg!(miri) { 25 } else { 200 };

/// The action of a coroutine in one poll.
#[derive(Clone, Debug)]
enum Act {
    Block,
    Yield,
    /// Yields, and keeps its place in the queue.
    GiveWay,
    Exit,
    Wake(usize),
    Reprio(usize, u8),
    Cancel(usize),
}

#[derive(Clone, Debug)]
enum Op {
    Spawn {
        level: u8,
        pinned: bool,
        start: bool,
        acts: Vec<Act>,
    },
    Poll,
    Wake(usize),
    Reprio(usize, u8),
    Cancel(usize),
}

/// An operation, the vCPU that it concerns, and whether it is made by a thread that serves no vCPU.
#[derive(Clone, Debug)]
struct Step {
    op: Op,
    vcpu: usize,
    outside: bool,
}

fn acts() -> impl Strategy<Value = Act> {
    prop_oneof![
        3 => Just(Act::Block),
        3 => Just(Act::Yield),
        3 => Just(Act::GiveWay),
        1 => Just(Act::Exit),
        2 => any::<usize>().prop_map(Act::Wake),
        1 => (any::<usize>(), 0..64u8).prop_map(|(k, l)| Act::Reprio(k, l)),
        1 => any::<usize>().prop_map(Act::Cancel),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let levels = prop_oneof![0..64u8, 10..13u8];
    let spawn = (
        levels,
        any::<bool>(),
        any::<u8>(),
        prop::collection::vec(acts(), 0..6),
    );
    let op = prop_oneof![
        3 => spawn.prop_map(|(level, pinned, start, acts)| {
            Op::Spawn { level, pinned, start: start % 8 != 0, acts }
        }),
        8 => Just(Op::Poll),
        4 => any::<usize>().prop_map(Op::Wake),
        3 => (any::<usize>(), 0..64u8).prop_map(|(k, l)| Op::Reprio(k, l)),
        1 => any::<usize>().prop_map(Op::Cancel),
    ];
    let step =
        (op, 0..2usize, any::<bool>()).prop_map(|(op, vcpu, outside)| Step { op, vcpu, outside });
    prop::collection::vec(step, 1..OPS)
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    Blocked,
    Running,
    Inbox,
    Queue,
    Dead,
}

struct Modelled {
    level: u8,
    pinned: Option<usize>,
    place: Place,
    /// Order of enqueueing.
    since: i64,
    notified: bool,
    cancelled: bool,
    acts: VecDeque<Act>,
    polls: usize,
    /// Levels that the coroutine had in an inbox and has no longer. Their bits may stay set until
    /// its next poll.
    stale_levels: u64,
}

#[derive(Default)]
struct Model {
    vcpus: usize,
    all: Vec<Modelled>,
    time: i64,
}

impl Model {
    fn enqueue(&mut self, k: usize, place: Place) {
        self.time += 1;
        self.all[k].place = place;
        self.all[k].since = self.time;
    }

    /// Enqueues a coroutine before all others of its level.
    fn keep_place(&mut self, k: usize) {
        let level = self.all[k].level;
        let queued = self
            .all
            .iter()
            .filter(|state| state.place == Place::Queue && state.level == level);
        let oldest = queued.map(|state| state.since).min();
        self.all[k].since = oldest.map_or(self.time, |oldest| oldest - 1);
        self.all[k].place = Place::Queue;
    }

    /// Wakes a coroutine. `inbox` is true if the wake comes from a thread that serves no vCPU.
    fn wake(&mut self, k: usize, inbox: bool, cancel: bool) -> Result<(), Dead> {
        let state = &mut self.all[k];
        state.cancelled |= cancel;
        match state.place {
            Place::Dead => return Err(Dead),
            Place::Blocked => self.enqueue(k, if inbox { Place::Inbox } else { Place::Queue }),
            _ => state.notified = true,
        }
        Ok(())
    }

    fn drain(&mut self) {
        let mut arrived: Vec<usize> = (0..self.all.len())
            .filter(|&k| self.all[k].place == Place::Inbox)
            .collect();
        arrived.sort_by_key(|&k| self.all[k].since);
        for k in arrived {
            self.enqueue(k, Place::Queue);
        }
    }

    fn reprio(&mut self, k: usize, level: u8) -> Result<(), Dead> {
        if self.all[k].place == Place::Dead {
            return Err(Dead);
        }
        let before = std::mem::replace(&mut self.all[k].level, level);
        let place = self.all[k].place;
        // With two vCPUs the model drains both inboxes where the scheduler drains one.
        if place == Place::Inbox || place == Place::Queue && self.vcpus > 1 {
            self.all[k].stale_levels |= 1 << before;
        }
        if place == Place::Queue && before != level {
            self.enqueue(k, Place::Queue);
        }
        Ok(())
    }

    fn ready(&self, k: usize) -> bool {
        matches!(self.all[k].place, Place::Inbox | Place::Queue)
    }

    fn bitmap(&self) -> u64 {
        (0..self.all.len())
            .filter(|&k| self.ready(k))
            .fold(0, |bits, k| bits | 1 << self.all[k].level)
    }

    /// Returns the bits that may be set although no coroutine of their level is ready.
    fn stale_bits(&self) -> u64 {
        self.all
            .iter()
            .fold(0, |bits, state| bits | state.stale_levels)
    }

    fn pick(&mut self, vcpu: usize) -> Option<usize> {
        self.drain();
        (0..self.all.len())
            .filter(|&k| self.ready(k) && self.all[k].pinned.is_none_or(|on| on == vcpu))
            .min_by_key(|&k| (self.all[k].level, self.all[k].since))
    }

    fn poll(&mut self, k: usize) {
        let state = &mut self.all[k];
        state.place = Place::Running;
        state.notified = false;
        state.stale_levels = 0;
        if state.cancelled {
            state.place = Place::Dead;
            return;
        }
        state.polls += 1;
        let act = state.acts.pop_front().unwrap_or(Act::Block);
        let count = self.all.len();
        let other = |n: usize| n % count;
        let _ = match act {
            Act::Block => Ok(()),
            Act::Yield => self.wake(k, false, false),
            // No other coroutine is in a poll, so the level is still the one at which this one was
            // picked.
            Act::GiveWay => {
                self.keep_place(k);
                return;
            }
            Act::Exit => {
                self.all[k].place = Place::Dead;
                return;
            }
            Act::Wake(n) => self.wake(other(n), false, false),
            Act::Reprio(n, level) => self.reprio(other(n), level),
            Act::Cancel(n) => self.wake(other(n), false, true),
        };
        if self.all[k].notified || self.all[k].cancelled {
            self.enqueue(k, Place::Queue);
        } else {
            self.all[k].place = Place::Blocked;
        }
    }
}

struct Real {
    domain: Domain<TestHost>,
    vcpus: Vec<Executor<TestHost>>,
    ids: Arc<Mutex<Vec<CoroutineId>>>,
    handles: Vec<JoinHandle<(), TestHost>>,
    polls: Arc<Mutex<Vec<usize>>>,
}

impl Real {
    fn new(vcpus: usize) -> Real {
        let domain = domain(Config::default());
        Real {
            vcpus: (0..vcpus).map(|_| domain.add_vcpu().unwrap()).collect(),
            domain,
            ids: Arc::default(),
            handles: Vec::new(),
            polls: Arc::default(),
        }
    }

    fn future(&self, acts: &[Act]) -> impl Future<Output = ()> + Send + use<> {
        let mut acts: VecDeque<Act> = acts.iter().cloned().collect();
        let (domain, ids, polls) = (self.domain.clone(), self.ids.clone(), self.polls.clone());
        let own_index = self.handles.len();
        std::future::poll_fn(move |cx: &mut Context<'_>| {
            polls.lock().unwrap()[own_index] += 1;
            let ids = ids.lock().unwrap();
            let other = |n: usize| ids[n % ids.len()];
            let _ = match acts.pop_front().unwrap_or(Act::Block) {
                Act::Block => Ok(()),
                Act::Yield => {
                    cx.waker().wake_by_ref();
                    Ok(())
                }
                Act::GiveWay => {
                    cx.waker().wake_by_ref();
                    keep_place();
                    Ok(())
                }
                Act::Exit => return Poll::Ready(()),
                Act::Wake(n) => domain.wake(other(n)),
                Act::Reprio(n, l) => domain.reprio(other(n), level(l)),
                Act::Cancel(n) => domain.cancel(other(n)),
            };
            Poll::Pending
        })
    }

    fn spawn(&mut self, options: SpawnOptions, pinned: Option<usize>, acts: &[Act]) {
        self.polls.lock().unwrap().push(0);
        let future = self.future(acts);
        let handle = match pinned {
            None => self.domain.spawn(future, options),
            // SAFETY: the future and its output are `Send`.
            Some(vcpu) => unsafe { self.vcpus[vcpu].spawn_pinned(future, options) },
        };
        let handle = handle.unwrap();
        self.ids.lock().unwrap().push(handle.id());
        self.handles.push(handle);
    }

    /// Ends all coroutines, which breaks the reference cycle between the domain and the futures.
    fn finish(self) {
        self.domain.close();
        while self.domain.cancel_all() != 0 {
            for vcpu in &self.vcpus {
                run(vcpu, 10_000);
            }
        }
        assert_eq!(self.domain.bitmap(), 0);
        assert!(self.handles.iter().all(JoinHandle::is_finished));
    }
}

/// Runs the steps on the scheduler and on the model, and compares the two after each step.
fn compare(vcpus: usize, steps: &[Step]) -> Result<(), TestCaseError> {
    let mut real = Real::new(vcpus);
    let mut model = Model {
        vcpus,
        ..Model::default()
    };
    for Step { op, vcpu, outside } in steps {
        let vcpu = vcpu % vcpus;
        let count = model.all.len();
        let id = |n: &usize| real.ids.lock().unwrap()[n % count];
        match op {
            Op::Spawn {
                level,
                pinned,
                start,
                acts,
            } => {
                let pinned = pinned.then_some(vcpu);
                let options = SpawnOptions {
                    priority: at(*level),
                    start: *start,
                    ..SpawnOptions::default()
                };
                // The spawning thread does not serve the vCPU, so the coroutine goes through the
                // inbox.
                real.spawn(options, pinned, acts);
                model.all.push(Modelled {
                    level: *level,
                    pinned,
                    place: Place::Blocked,
                    since: 0,
                    notified: false,
                    cancelled: false,
                    acts: acts.iter().cloned().collect(),
                    polls: 0,
                    stale_levels: 0,
                });
                if *start {
                    model.enqueue(count, Place::Inbox);
                }
            }
            Op::Poll => {
                let expected = model.pick(vcpu);
                let polled = step(&real.vcpus[vcpu]);
                let ids = real.ids.lock().unwrap().clone();
                let k = polled.map(|(id, _)| ids.iter().position(|&i| i == id).unwrap());
                if vcpus == 1 {
                    prop_assert_eq!(k, expected);
                } else {
                    let level = |k: Option<usize>| k.map(|k| model.all[k].level);
                    prop_assert_eq!(level(k), level(expected));
                    prop_assert!(k.is_none_or(|k| model.ready(k)));
                    prop_assert!(k.is_none_or(|k| model.all[k].pinned.is_none_or(|on| on == vcpu)));
                }
                if let Some(k) = k {
                    model.poll(k);
                }
            }
            _ if count == 0 => {}
            Op::Wake(n) | Op::Cancel(n) => {
                let (id, cancel) = (id(n), matches!(op, Op::Cancel(_)));
                let wake = || {
                    if cancel {
                        real.domain.cancel(id)
                    } else {
                        real.domain.wake(id)
                    }
                };
                let woken = if *outside {
                    wake()
                } else {
                    serving(&real.vcpus[vcpu], wake)
                };
                prop_assert_eq!(woken, model.wake(n % count, *outside, cancel));
            }
            Op::Reprio(n, l) => {
                let result = real.domain.reprio(id(n), level(*l));
                prop_assert_eq!(result, model.reprio(n % count, *l));
            }
        }
        // Invariant 5: the bitmap shows the levels that have a ready coroutine.
        let (real_bits, bits) = (real.domain.bitmap(), model.bitmap());
        prop_assert_eq!(real_bits & !(model.stale_bits() & !bits), bits);
        // Invariant 2: each coroutine has the polls that its wakes account for.
        let polls: Vec<usize> = model.all.iter().map(|state| state.polls).collect();
        prop_assert_eq!(&*real.polls.lock().unwrap(), &polls);
    }
    real.finish();
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Invariants 1, 2 and 5.
    #[test]
    fn one_vcpu_polls_the_coroutines_that_the_model_predicts(steps in steps()) {
        compare(1, &steps)?;
    }

    #[test]
    fn two_vcpus_poll_the_levels_that_the_model_predicts(steps in steps()) {
        compare(2, &steps)?;
    }
}
