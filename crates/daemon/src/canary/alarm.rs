//! What happens when a canary is silent; the states are drawn in `mod.rs`.
//!
//! **Culprits** are threads that lend their priority: they sleep in a lock whose holder inherits it. And those on a silent CPU that
//! have themselves used half of the second half of the silence, unless threads have ended there unseen lately, which may have done the same before.
//! Their users are barred, for longer each time. If no culprit is found, the users of what has ended are, for a second, as suspects; if there is none
//! either (an unknown way), the users of all that was elevated where it helped to demote it are, for a second, as suspects; one that
//! goes on has the CPU for 100 ms of each 1.1 s. No user is barred for a silence while a CPU is unplugged; and none but those that lend, if the
//! scheduler of the CPU was kept from it as well (`accounts.rs`).
//!
//! In which lock a thread sleeps stands in a file of `/proc`, which the watch does not open: scouts do (`scout.rs`), one for each user. The watch
//! waits for [`INQUIRY`] at most, with all suspects demoted; users whose examination has begun and not ended by then are suspects, since they can
//! delay it. One that has not begun proves nothing: the scouts got no CPU. After a silence it is waited for, all suspects demoted, for as long as a suspect
//! is barred; then that user is not barred.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use upshift_elevate::Tid;

use crate::bars;
use crate::canary::odds::{SPAN, Verdict};
use crate::canary::thread::Canary;
use crate::canary::{PATIENCE, ROUND};
use crate::machine::Machine;
use crate::roster::Hold;
use crate::scout::Stack;
use crate::shared::Shared;

/// How long a canary has to answer after what it is thought to suffer from was demoted.
const GRACE: Duration = Duration::from_millis(10);

/// How much of a turn may go into looking for culprits. The rest waits, demoted, for the next turn.
const EXAMINATION: Duration = Duration::from_micros(500);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Alarm {
    stage: Stage,
    /// The CPUs of the alarm under way.
    silent: HashSet<usize>,
    /// CPU time of threads on CPUs that have been silent for half of the patience, and when that was.
    samples: HashMap<Tid, (u64, Instant)>,
    suspects: Vec<Arc<Hold>>,
    /// Users of threads that have ended unseen on the CPUs of the alarm lately, so that these may be what has taken them.
    evasive: HashSet<u32>,
    /// CPUs that something else is known to take are not suspicious until then.
    foreign_until: Option<Instant>,
    /// A silent CPU has stood still, for the daemon's own threads as well: nothing that the daemon has elevated does that.
    stood_still: bool,
    /// A CPU has gone: whatever was silent, no user is to blame.
    unplugged: bool,
}

/// How long a CPU that is taken with nothing elevated is taken for another's.
const FOREIGN: Duration = Duration::from_secs(10);

/// How often scouts look for what was lent in pieces.
const INQUIRIES: u32 = 8;

/// How long scouts have to examine suspects.
const INQUIRY: Duration = Duration::from_millis(250);

/// What a scout has found out of a user: the first of its threads that is to blame, and what for.
type Finding = (u32, Option<String>);

/// What scouts are about to find out.
#[derive(Debug)]
struct Inquiry {
    /// Users whose examination begins.
    begun: Arc<Stack<u32>>,
    findings: Arc<Stack<Finding>>,
    /// Users whose examination has not begun yet.
    unbegun: HashSet<u32>,
    /// Users that are not examined yet.
    open: HashSet<u32>,
    /// How long it is waited for examinations to begin.
    patience: Duration,
    /// How long it has been waited in all, and since the last examination began, and when the watch looked last.
    waited: Duration,
    had: Duration,
    looked: Instant,
}

impl Inquiry {
    /// Sends a scout for each user; `patience` is for those whose examination does not begin.
    fn start(
        shared: &Shared,
        holds: &VecDeque<Arc<Hold>>,
        patience: Duration,
        now: Instant,
    ) -> Inquiry {
        let mut users: HashMap<u32, Vec<(i32, Tid)>> = HashMap::new();
        for hold in holds {
            let threads = users.entry(hold.owner.user).or_default();
            threads.push((hold.owner.pid, hold.tid));
        }
        let inquiry = Inquiry::of(users.keys().copied().collect(), patience, now);
        for (user, threads) in users {
            let (begun, findings) = (Arc::clone(&inquiry.begun), Arc::clone(&inquiry.findings));
            let machine = Arc::clone(&shared.machine);
            shared.scouts.send(move || {
                begun.put(user);
                let blame = |&(pid, tid): &(i32, Tid)| {
                    let what = offence(machine.as_ref(), tid)?;
                    Some(format!("thread {tid} of process {pid} {what}"))
                };
                findings.put((user, threads.iter().find_map(blame)));
            });
        }
        inquiry
    }

    fn of(users: HashSet<u32>, patience: Duration, now: Instant) -> Inquiry {
        Inquiry {
            begun: Arc::default(),
            findings: Arc::default(),
            unbegun: users.clone(),
            open: users,
            patience,
            waited: Duration::ZERO,
            had: Duration::ZERO,
            looked: now,
        }
    }

    /// Takes what has been found out; whether there is more to come. Of the time since the last look a round counts at most: if the watch
    /// itself is late, the machine may have stood still, scouts included, which proves nothing against users that are not examined.
    fn hear(&mut self, culprits: &mut HashMap<u32, String>, now: Instant) -> bool {
        let time = now.saturating_duration_since(self.looked).min(ROUND);
        self.looked = now;
        self.waited += time;
        self.had += time;
        for user in self.begun.take() {
            self.unbegun.remove(&user);
            self.had = Duration::ZERO;
        }
        for (user, blame) in self.findings.take() {
            self.open.remove(&user);
            if let Some(text) = blame {
                culprits.entry(user).or_insert(text);
            }
        }
        let is_in_time = match self.unbegun.is_empty() {
            true => self.had < INQUIRY,
            false => self.waited < self.patience,
        };
        !self.open.is_empty() && is_in_time
    }
}

/// Users that scouts had no time to examine.
#[derive(Debug, Default)]
struct Unexamined {
    /// Their examination has begun, and does not end: they may have seen to that.
    begun: HashSet<u32>,
    /// It has not begun: that is the daemon's lateness.
    unbegun: HashSet<u32>,
}

/// Which users are barred beside culprits.
#[derive(Debug, PartialEq, Eq)]
enum Suspicion {
    None,
    /// Those whose threads end unseen.
    Evasive,
    Users(HashSet<u32>),
}

impl Suspicion {
    /// Nothing follows from an observation that the daemon made late: not where the CPU stood still for the daemon, too, and not against users whose
    /// examination has not begun.
    fn of(
        has_culprits: bool,
        stood_still: bool,
        evasive: &HashSet<u32>,
        suspects: HashSet<u32>,
        unexamined: &Unexamined,
    ) -> Suspicion {
        if stood_still {
            return Suspicion::None;
        }
        if !has_culprits && !evasive.is_empty() {
            return Suspicion::Evasive;
        }
        let is_one = |user: &u32| match has_culprits {
            true => unexamined.begun.contains(user),
            // In a way that is not known.
            false => !unexamined.unbegun.contains(user),
        };
        let users: HashSet<u32> = suspects.into_iter().filter(is_one).collect();
        match users.is_empty() {
            true => Suspicion::None,
            false => Suspicion::Users(users),
        }
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

/// An examination under way.
#[derive(Debug)]
struct Trial {
    left: VecDeque<Arc<Hold>>,
    inquiry: Inquiry,
    culprits: HashMap<u32, String>,
    /// How often nothing was found.
    inquiries: u32,
    /// For how long ordinary programs did not run; `None`: they did now and then.
    silence: Option<Duration>,
}

#[derive(Debug, Default)]
enum Stage {
    #[default]
    Calm,
    Local(Instant),
    Global(Instant),
    Examined(Box<Trial>),
    /// It is not ours; wait until all answer.
    Foreign,
}

impl Alarm {
    pub(super) fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Calm | Stage::Foreign)
    }

    /// One turn of the watch.
    pub(super) fn step(&mut self, shared: &Shared, canaries: &mut [Canary], now: Instant) {
        for canary in &mut *canaries {
            self.unplugged |= canary.has_just_lost_its_cpu(now);
        }
        match std::mem::take(&mut self.stage) {
            Stage::Calm => self.listen(shared, canaries, now),
            Stage::Local(since) if self.all_answered(canaries) => {
                self.examine(shared, now, Some(now - since));
            }
            Stage::Local(since) if now - since < GRACE => self.stage = Stage::Local(since),
            Stage::Local(since) => {
                self.suspects = shared.roster.holds(Hold::is_raised);
                shared.roster.suspend(|_| true);
                self.stage = Stage::Global(since);
            }
            Stage::Global(since) if self.all_answered(canaries) => {
                self.examine(shared, now, Some(now - since));
            }
            Stage::Global(since) if now - since < 2 * GRACE => self.stage = Stage::Global(since),
            Stage::Global(_) => {
                shared.complain("foreign", || {
                    let silent = &self.silent;
                    format!(
                        "ordinary programs do not run on the CPUs {silent:?}, with no thread elevated: something else is real-time there, or the machine stands still"
                    )
                });
                self.finish(shared);
                self.stage = Stage::Foreign;
            }
            Stage::Examined(trial) => self.go_on(shared, trial, now),
            Stage::Foreign => {
                if canaries.iter().all(Canary::has_answered) {
                    canaries.iter_mut().for_each(|canary| canary.ask(now));
                } else {
                    self.stage = Stage::Foreign;
                }
            }
        }
    }

    fn all_answered(&self, canaries: &[Canary]) -> bool {
        let mut silent = canaries
            .iter()
            .filter(|canary| self.silent.contains(&canary.cpu));
        silent.all(Canary::has_answered)
    }

    /// Asks the canaries that have answered, and looks at the others.
    fn listen(&mut self, shared: &Shared, canaries: &mut [Canary], now: Instant) {
        self.silent.clear();
        self.unplugged = false;
        let (mut dubious, mut taken) = (HashSet::new(), HashMap::new());
        let mut explained = None;
        for canary in canaries {
            let silence = canary.silence(now);
            canary.count();
            if canary.is_due(now) {
                let explained = explained.get_or_insert_with(|| shared.accounts.explained());
                let unknown = shared.accounts.take_unknown(canary.cpu);
                let verdict = canary.verdict(explained(canary.cpu), unknown, now);
                if let Verdict::Taken(by) = verdict {
                    taken.insert(canary.cpu, by);
                }
            }
            if silence.is_zero() {
                canary.ask(now);
            } else if silence >= PATIENCE {
                self.silent.insert(canary.cpu);
            } else if silence >= PATIENCE / 2 {
                dubious.insert(canary.cpu);
            }
        }
        if self.silent.is_empty() || shared.roster.holds(Hold::is_raised).is_empty() {
            self.sample(shared, &dubious, now);
            self.suspect(shared, taken, now);
            return;
        }
        shared.counts.alarms.fetch_add(1, Relaxed);
        let silent = &self.silent;
        let here = |hold: &Hold| hold.may_run_on(silent);
        self.suspects = shared.roster.holds(|hold| here(hold) && hold.is_raised());
        let evasive = silent.iter().flat_map(|&cpu| shared.accounts.evasive(cpu));
        self.evasive = evasive.collect();
        shared.roster.suspend(here);
        self.stage = Stage::Local(now);
    }

    /// CPUs that are nearly always taken by what is in no account: culprits are looked for while they are at it, so that they do not see
    /// that.
    fn suspect(&mut self, shared: &Shared, taken: HashMap<usize, Vec<u32>>, now: Instant) {
        if taken.is_empty() || self.unplugged || self.foreign_until.is_some_and(|it| now < it) {
            return;
        }
        // One CPU that nothing explains may be any user's.
        let all_known = taken.values().all(|by| !by.is_empty());
        self.evasive = match all_known {
            true => taken.values().flatten().copied().collect(),
            false => HashSet::new(),
        };
        let taken: HashSet<usize> = taken.into_keys().collect();
        let raised = |hold: &Hold| hold.is_raised();
        if self.evasive.is_empty()
            && shared
                .roster
                .holds(|hold| raised(hold) && hold.may_run_on(&taken))
                .is_empty()
        {
            self.foreign_until = Some(now + FOREIGN);
            return;
        }
        shared.counts.alarms.fetch_add(1, Relaxed);
        self.silent = taken;
        self.samples.clear();
        // It may be lent from another CPU.
        self.suspects = shared.roster.holds(raised);
        self.examine(shared, now, None);
    }

    /// Notes the CPU time of what is elevated on CPUs of which the canary is late.
    fn sample(&mut self, shared: &Shared, dubious: &HashSet<usize>, now: Instant) {
        if dubious.is_empty() {
            self.samples.clear();
            return;
        }
        let here = |hold: &Hold| hold.may_run_on(dubious) && hold.is_raised();
        for hold in shared.roster.holds(here) {
            if now.elapsed() > ROUND / 10 {
                // Many: a thread that is not sampled is a suspect like the others.
                return;
            }
            if !self.samples.contains_key(&hold.tid)
                && let Some(spent) = hold.cpu_time(shared.machine.as_ref())
            {
                self.samples.insert(hold.tid, (spent, now));
            }
        }
    }

    fn examine(&mut self, shared: &Shared, now: Instant, demoted: Option<Duration>) {
        self.stood_still = demoted.is_some_and(|demoted| {
            let since = now - (ROUND + PATIENCE + demoted);
            let silent = &mut self.silent.iter();
            // What has a deadline is above the schedulers.
            !shared.are_deadlines_guarded()
                && silent.any(|&cpu| shared.accounts.has_stood_still(cpu, since))
        });
        let suspects: HashSet<Tid> = self.suspects.iter().map(|hold| hold.tid).collect();
        let may_be = |hold: &Hold| hold.is_raised() || suspects.contains(&hold.tid);
        let left: VecDeque<_> = shared.roster.holds(may_be).into();
        // After a silence all suspects are demoted meanwhile; else they go on.
        let patience = demoted.map_or(INQUIRY, |_| bars::FIRST);
        let trial = Box::new(Trial {
            inquiry: Inquiry::start(shared, &left, patience, now),
            left,
            culprits: HashMap::new(),
            inquiries: 0,
            silence: demoted.map(|demoted| ROUND + PATIENCE + demoted),
        });
        self.go_on(shared, trial, now);
    }

    /// Looks for culprits for a while; with all looked at, the verdict.
    fn go_on(&mut self, shared: &Shared, mut trial: Box<Trial>, now: Instant) {
        while let Some(hold) = trial.left.pop_front() {
            // Beside what has ended unseen, or stops the daemon as well, it may have done what it may.
            let blameless = self.stood_still || !self.evasive.is_empty();
            if !blameless && self.has_burnt(shared, &hold, now) {
                let text = || {
                    let (tid, pid) = (hold.tid, hold.owner.pid);
                    format!("thread {tid} of process {pid} has used the CPU all the time")
                };
                trial.culprits.entry(hold.owner.user).or_insert_with(text);
            }
            if now.elapsed() > EXAMINATION && !trial.left.is_empty() {
                self.stage = Stage::Examined(trial);
                return;
            }
        }
        let Trial {
            inquiry, culprits, ..
        } = &mut *trial;
        if inquiry.hear(culprits, now) {
            self.stage = Stage::Examined(trial);
            return;
        }
        // What is lent in pieces may just not have been.
        if trial.silence.is_none() && trial.culprits.is_empty() && trial.inquiries < INQUIRIES {
            let holds = shared.roster.holds(Hold::is_raised).into();
            trial.inquiries += 1;
            trial.inquiry = Inquiry::start(shared, &holds, INQUIRY, now);
            self.stage = Stage::Examined(trial);
            return;
        }
        self.judge(shared, &trial, now);
        self.finish(shared);
    }

    /// Whether the thread has used half of the time since it was sampled, on a silent CPU.
    fn has_burnt(&self, shared: &Shared, hold: &Hold, now: Instant) -> bool {
        let Some((before, at)) = self.samples.get(&hold.tid) else {
            return false;
        };
        let spent = hold.cpu_time(shared.machine.as_ref()).unwrap_or(*before);
        let used = Duration::from_nanos(spent.saturating_sub(*before));
        hold.may_run_on(&self.silent) && used * 2 > now.saturating_duration_since(*at)
    }

    fn judge(&self, shared: &Shared, trial: &Trial, now: Instant) {
        if self.unplugged {
            return shared.complain("canary", || {
                "a CPU was unplugged: what it ran was elsewhere for a moment".to_string()
            });
        }
        let until = |bar: Duration| format!("not elevated for {} s", bar.as_secs());
        for (&user, what) in &trial.culprits {
            let bar = match trial.silence {
                Some(_) => shared.bars.punish(user, now),
                None => shared.bars.punish_for(user, SPAN, now),
            };
            shared.eject(format!("user {user} is {}: {what}", until(bar)));
        }
        let inquiry = &trial.inquiry;
        let unexamined = Unexamined {
            begun: inquiry.open.difference(&inquiry.unbegun).copied().collect(),
            unbegun: inquiry.unbegun.clone(),
        };
        let suspects = self.suspects.iter().map(|hold| hold.owner.user).collect();
        let verdict = Suspicion::of(
            !trial.culprits.is_empty(),
            self.stood_still,
            &self.evasive,
            suspects,
            &unexamined,
        );
        match verdict {
            Suspicion::None if trial.culprits.is_empty() && self.stood_still => {
                let silent = &self.silent;
                return shared.complain("foreign", || {
                    format!(
                        "the CPUs {silent:?} stood still, for the daemon too: the kernel throttles real-time threads, the host has no time, or something else is real-time there"
                    )
                });
            }
            Suspicion::None => {}
            Suspicion::Evasive => {
                for &user in &self.evasive {
                    shared.bars.suspect(user, now);
                    shared.eject(format!(
                        "user {user} is {}: its threads end before it can be seen what they use",
                        until(bars::FIRST)
                    ));
                }
            }
            Suspicion::Users(users) => {
                for user in users {
                    shared.bars.suspect(user, now);
                    shared.eject(format!(
                        "user {user} is {}: as a suspect",
                        until(bars::FIRST)
                    ));
                }
            }
        }
        shared.complain("canary", || {
            let silent = &self.silent;
            match trial.silence.map(|it| it.as_millis()) {
                Some(ms) => format!("ordinary programs did not run on the CPUs {silent:?} for up to {ms} ms"),
                None => format!("the CPUs {silent:?} were nearly always taken by something that is real-time by no rule"),
            }
        });
    }

    fn finish(&mut self, shared: &Shared) {
        shared.roster.resume();
        self.suspects.clear();
        self.evasive.clear();
        self.samples.clear();
        self.stage = Stage::Calm;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn users<const N: usize>(users: [u32; N]) -> HashSet<u32> {
        HashSet::from(users)
    }

    #[test]
    fn a_watch_that_is_late_takes_no_time_from_scouts() {
        for late in [10, 250, 2000].map(|ms| ms * MS) {
            let start = Instant::now();
            let mut inquiry = Inquiry::of(users([7, 8]), bars::FIRST, start);
            inquiry.begun.put(7);
            inquiry.begun.put(8);
            let mut culprits = HashMap::new();
            let mut now = start + late;
            assert!(inquiry.hear(&mut culprits, now), "late by {late:?}");
            // Observations on time: the culprit is found, and the inquiry ends.
            inquiry.findings.put((7, Some("lends".to_string())));
            let end = now + INQUIRY;
            while inquiry.hear(&mut culprits, now) {
                now += 2 * MS;
                assert!(now <= end, "late by {late:?}");
            }
            assert!(culprits.contains_key(&7) && culprits.len() == 1);
            assert_eq!(inquiry.open, users([8]));
        }
    }

    #[test]
    fn examinations_that_do_not_begin_are_waited_for_as_long_as_a_suspect_is_barred() {
        for (patience, waited) in [(bars::FIRST, bars::FIRST), (INQUIRY, INQUIRY)] {
            let mut now = Instant::now();
            let mut inquiry = Inquiry::of(users([7, 8]), patience, now);
            inquiry.begun.put(7);
            let (began, mut culprits) = (now, HashMap::new());
            while inquiry.hear(&mut culprits, now) {
                now += 2 * MS;
            }
            let took = now - began;
            assert!(took >= waited && took < waited + ROUND, "{took:?}");
            assert_eq!((inquiry.open, inquiry.unbegun), (users([7, 8]), users([8])));
        }
    }

    #[test]
    fn an_examination_that_begins_late_is_still_heard() {
        let mut now = Instant::now();
        let mut inquiry = Inquiry::of(users([7]), bars::FIRST, now);
        let mut culprits = HashMap::new();
        while inquiry.waited < 2 * INQUIRY {
            now += 10 * MS;
            assert!(inquiry.hear(&mut culprits, now));
        }
        inquiry.begun.put(7);
        // It has all the time that others have.
        let begins = now;
        while now + 10 * MS < begins + INQUIRY {
            now += 10 * MS;
            assert!(inquiry.hear(&mut culprits, now));
        }
        inquiry.findings.put((7, Some("lends".to_string())));
        assert!(!inquiry.hear(&mut culprits, now));
        assert!(culprits.contains_key(&7));
    }

    #[test]
    fn lateness_of_the_daemon_proves_nothing() {
        let unexamined = Unexamined {
            begun: users([2]),
            unbegun: users([3]),
        };
        let verdict = |has_culprits, stood_still, evasive: &HashSet<u32>| {
            let suspects = users([1, 2, 3]);
            Suspicion::of(has_culprits, stood_still, evasive, suspects, &unexamined)
        };
        let (nothing, evasive) = (users([]), users([4]));
        // The CPU stood still for the daemon, too: none but those that were found.
        for has_culprits in [false, true] {
            assert_eq!(verdict(has_culprits, true, &nothing), Suspicion::None);
            assert_eq!(verdict(has_culprits, true, &evasive), Suspicion::None);
        }
        // Beside a culprit those that keep a scout, in an unknown way all that a scout has got to.
        assert_eq!(verdict(true, false, &nothing), Suspicion::Users(users([2])));
        assert_eq!(
            verdict(false, false, &nothing),
            Suspicion::Users(users([1, 2]))
        );
        assert_eq!(verdict(false, false, &evasive), Suspicion::Evasive);
    }
}
