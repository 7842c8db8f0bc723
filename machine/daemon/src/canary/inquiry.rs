//! [`Inquiry`]: scouts look which users lend their priority, since that stands in files of `/proc`, which the watch does not open (`scout.rs`).
//!
//! The watch waits until all users are examined, but no longer than it has patience. A user whose scout has slept in the middle of the
//! examination for [`KEPT`] *keeps* it, by a file of its own. A scout that waits for a CPU shows nothing, and neither does time in which the watch
//! itself was not there (`evidence.rs`).

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use upshift_elevate::Tid;

use crate::canary::HURRY;
use crate::evidence::Pace;
use crate::machine::Machine;
use crate::proc::reader::Lane;
use crate::proc::stack::Stack;
use crate::ranking::roster::Hold;
use crate::shared::Shared;

/// How long there is for an inquiry while suspects go on.
pub(super) const INQUIRY: Duration = Duration::from_millis(250);

/// How long a scout sleeps at most in files of one that does not see to that; half of what there is for it.
pub(super) const KEPT: Duration = Duration::from_millis(INQUIRY.as_millis() as u64 / 2);

/// What a scout is doing, for others to see.
#[derive(Debug, Clone)]
pub(super) struct Whereabouts(Arc<File>);

thread_local! {
    static OWN: Option<Whereabouts> = File::open("/proc/thread-self/stat")
        .ok()
        .map(|file| Whereabouts(Arc::new(file)));
}

impl Whereabouts {
    /// Those of the calling thread; `None` if no descriptors are left.
    fn own() -> Option<Whereabouts> {
        OWN.with(Clone::clone)
    }

    /// Whether it sleeps in the kernel: it neither computes nor waits for a CPU. One system
    /// call, which waits for nothing.
    fn sleeps(&self) -> bool {
        let mut text = [0; 64];
        let read = self.0.read_at(&mut text, 0).unwrap_or(0);
        let end = text[..read].iter().rposition(|&it| it == b')');
        let state = end.and_then(|end| text[..read].get(end + 2));
        matches!(state, Some(b'S' | b'D'))
    }
}

/// What a scout has found out of a user: the first of its threads that is to blame, and what for.
type Finding = (u32, Option<String>);

/// A scout on its way.
pub(super) trait Scout {
    /// Whether it neither computes nor waits for a CPU.
    fn sleeps(&self) -> bool;
}

impl Scout for Option<Whereabouts> {
    fn sleeps(&self) -> bool {
        self.as_ref().is_some_and(Whereabouts::sleeps)
    }
}

/// What scouts are about to find out.
#[derive(Debug)]
pub(super) struct Inquiry<S = Option<Whereabouts>> {
    /// Users whose examination begins.
    begun: Arc<Stack<(u32, S)>>,
    findings: Arc<Stack<Finding>>,
    /// Users that are not examined yet, and the scout of each, if it has begun.
    open: HashMap<u32, Option<Kept<S>>>,
    patience: Duration,
    waited: Duration,
    pace: Pace,
}

#[derive(Debug)]
struct Kept<S> {
    scout: S,
    /// How long it has slept.
    time: Duration,
}

impl Inquiry {
    /// Sends a scout for each user.
    pub(super) fn start(
        shared: &Shared,
        holds: &[Arc<Hold>],
        patience: Duration,
        now: Instant,
    ) -> Inquiry {
        let mut users: HashMap<u32, Vec<(i32, Tid)>> = HashMap::new();
        for hold in holds {
            let threads = users.entry(hold.owner.user).or_default();
            threads.push((hold.owner.pid, hold.tid));
        }
        let inquiry = Inquiry::of(users.keys().copied(), patience, now);
        for (user, threads) in users {
            let (begun, findings) = (Arc::clone(&inquiry.begun), Arc::clone(&inquiry.findings));
            let machine = Arc::clone(&shared.machine);
            shared.reader.send(Lane::Own, move || {
                begun.put((user, Whereabouts::own()));
                let blame = |&(pid, tid): &(i32, Tid)| {
                    let what = offence(machine.as_ref(), tid)?;
                    Some(format!("thread {tid} of process {pid} {what}"))
                };
                findings.put((user, threads.iter().find_map(blame)));
            });
        }
        inquiry
    }
}

impl<S: Scout> Inquiry<S> {
    fn of(users: impl Iterator<Item = u32>, patience: Duration, now: Instant) -> Inquiry<S> {
        Inquiry {
            begun: Arc::default(),
            findings: Arc::default(),
            open: users.map(|user| (user, None)).collect(),
            patience,
            waited: Duration::ZERO,
            pace: Pace::new(HURRY, now),
        }
    }

    /// Takes what has been found out; whether there is more to come.
    pub(super) fn hear(&mut self, culprits: &mut HashMap<u32, String>, now: Instant) -> bool {
        let time = self.pace.lap(now);
        self.waited += time;
        for (user, scout) in self.begun.take() {
            if let Some(one) = self.open.get_mut(&user) {
                let time = Duration::ZERO;
                *one = Some(Kept { scout, time });
            }
        }
        for (user, blame) in self.findings.take() {
            self.open.remove(&user);
            if let Some(text) = blame {
                culprits.entry(user).or_insert(text);
            }
        }
        for kept in self.open.values_mut().flatten() {
            if kept.scout.sleeps() {
                kept.time += time;
            }
        }
        let is_undecided = |one: &Option<Kept<S>>| one.as_ref().is_none_or(|kept| kept.time < KEPT);
        self.waited < self.patience && self.open.values().any(is_undecided)
    }

    /// The users that keep their scouts.
    pub(super) fn keepers(&self) -> impl Iterator<Item = u32> {
        let keeps = |one: &Option<Kept<S>>| one.as_ref().is_some_and(|kept| kept.time >= KEPT);
        let open = self.open.iter().filter(move |&(_, one)| keeps(one));
        open.map(|(&user, _)| user)
    }
}

/// Whether the thread lends its priority. Opens a file of another process.
fn offence(machine: &dyn Machine, tid: Tid) -> Option<&'static str> {
    match machine.lends_its_priority(tid) {
        Ok(true) => Some("lends its priority through a lock"),
        // Only its owner can have seen to that.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            Some("does not let itself be looked at (it holds a lease on its file in /proc)")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use proptest::prelude::*;

    use super::*;
    use crate::bars;

    const MS: Duration = Duration::from_millis(1);

    /// Whether it sleeps.
    type Puppet = Rc<Cell<bool>>;

    impl Scout for Puppet {
        fn sleeps(&self) -> bool {
            self.get()
        }
    }

    fn inquiry<const N: usize>(
        users: [u32; N],
        patience: Duration,
        now: Instant,
    ) -> Inquiry<Puppet> {
        Inquiry::of(users.into_iter(), patience, now)
    }

    #[test]
    fn a_user_that_keeps_its_scout_is_found_and_one_that_is_examined_is_heard() {
        let mut now = Instant::now();
        let mut inquiry = inquiry([7, 8], bars::FIRST, now);
        let mut culprits = HashMap::new();
        for user in [7, 8] {
            inquiry.begun.put((user, Rc::new(Cell::new(true))));
        }
        assert!(inquiry.hear(&mut culprits, now));
        inquiry.findings.put((7, Some("lends".to_string())));
        let began = now;
        while inquiry.hear(&mut culprits, now) {
            now += HURRY;
        }
        assert!(now - began >= KEPT && now - began <= KEPT + 2 * HURRY);
        assert_eq!(inquiry.keepers().collect::<Vec<_>>(), [8]);
        assert_eq!(culprits.into_keys().collect::<Vec<_>>(), [7]);
    }

    #[test]
    fn scouts_that_get_no_cpu_are_waited_for_and_prove_nothing() {
        for patience in [bars::FIRST, INQUIRY] {
            let mut now = Instant::now();
            let mut inquiry = inquiry([7, 8], patience, now);
            // One has begun, and is preempted for ever.
            inquiry.begun.put((7, Rc::new(Cell::new(false))));
            let (began, mut culprits) = (now, HashMap::new());
            while inquiry.hear(&mut culprits, now) {
                now += HURRY;
            }
            assert_eq!(now - began, patience);
            assert_eq!((inquiry.keepers().count(), culprits.len()), (0, 0));
        }
    }

    proptest! {
        /// However late the watch is, and whatever scouts do meanwhile: a user that keeps its scout has done so at observations that were on time, for
        /// so long in all.
        #[test]
        fn a_keeper_has_kept_its_scout_for_long_enough(
            laps in prop::collection::vec((0..3000u64, any::<bool>(), 0..100u32), 1..2000),
        ) {
            let mut now = Instant::now();
            let mut inquiry = inquiry([7], bars::FIRST, now);
            let scout = Rc::new(Cell::new(false));
            inquiry.begun.put((7, Rc::clone(&scout)));
            let (mut slept, mut culprits) = (Duration::ZERO, HashMap::new());
            for (us, sleeps, late) in laps {
                // One in ten is late, by up to three seconds.
                let time = Duration::from_micros(us) * if late < 10 { 1000 } else { 1 };
                now += time;
                scout.set(sleeps);
                slept += if sleeps { time.min(HURRY) } else { Duration::ZERO };
                if !inquiry.hear(&mut culprits, now) {
                    break;
                }
            }
            prop_assert_eq!(inquiry.keepers().count() == 1, slept >= KEPT);
            prop_assert!(inquiry.waited <= bars::FIRST + HURRY);
        }
    }

    #[test]
    fn a_watch_that_is_late_takes_no_time_from_scouts() {
        for late in [10, 250, 2000].map(|ms| ms * MS) {
            let mut now = Instant::now();
            let mut inquiry = inquiry([7], INQUIRY, now);
            inquiry.begun.put((7, Rc::new(Cell::new(true))));
            let mut culprits = HashMap::new();
            now += late;
            assert!(inquiry.hear(&mut culprits, now), "late by {late:?}");
            inquiry.findings.put((7, Some("lends".to_string())));
            assert!(!inquiry.hear(&mut culprits, now));
            assert!(culprits.contains_key(&7) && inquiry.keepers().count() == 0);
        }
    }
}
