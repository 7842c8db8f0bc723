//! What happens when a canary is silent; the states are drawn in `mod.rs`.
//!
//! **Culprits** are threads that lend their priority: they sleep in a lock whose holder inherits it (`inquiry.rs`). And those that have twice used a part of a
//! breath for others while the canary waited for the CPU, since it was asked last (`evidence.rs`). Their users are barred, for longer each time. So are, for a second,
//! those that keep the scouts that examine them, and without a culprit those of what has ended unseen, if that may have had half of the silence.
//!
//! **Without any of that** (an unknown way) no user is to blame: what was demoted *rests*, so that it has the CPU for 100 ms of each
//! 1.1 s. Meanwhile canaries are asked as ever: if the CPU goes on being taken, it is another's.
//!
//! No user is barred for a silence while a CPU is unplugged; and none but those that lend, if the scheduler of the CPU was kept from it as well
//! (`accounts.rs`). What the watch observes late counts as little as it is to (`evidence.rs`).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use upshift_elevate::Tid;

use crate::bars;
use crate::canary::inquiry::{INQUIRY, Inquiry};
use crate::canary::odds::{SPAN, Verdict};
use crate::canary::suspicion::{Findings, Suspicion};
use crate::canary::thread::Canary;
use crate::canary::{HURRY, PATIENCE, ROUND};
use crate::evidence::Pace;
use crate::ranking::roster::Hold;
use crate::shared::Shared;

/// How long a canary has to answer after what it is thought to suffer from was demoted.
const GRACE: Duration = Duration::from_millis(10);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Alarm {
    stage: Stage,
    /// The CPUs of the alarm under way.
    silent: HashSet<usize>,
    /// Those of which it is known that they took the CPU.
    intruders: Vec<Arc<Hold>>,
    suspects: Vec<Arc<Hold>>,
    /// Users of threads that have ended unseen on the CPUs of the alarm lately, so that these may be what has taken them.
    evasive: HashSet<u32>,
    /// What was demoted stays so until then.
    rests_until: Option<Instant>,
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

/// An examination under way.
#[derive(Debug)]
struct Trial {
    inquiry: Inquiry,
    culprits: HashMap<u32, String>,
    /// How often nothing was found, and when to look again.
    inquiries: u32,
    next: Instant,
    /// For how long ordinary programs did not run; `None`: they did now and then.
    silence: Option<Duration>,
    /// Since when suspects are demoted.
    demoted: Option<Instant>,
}

/// What is elevated was demoted then, and it is waited for an answer.
#[derive(Debug)]
struct Demoted {
    since: Instant,
    pace: Pace,
    waited: Duration,
}

impl Demoted {
    fn new(now: Instant) -> Demoted {
        Demoted {
            since: now,
            pace: Pace::new(HURRY, now),
            waited: Duration::ZERO,
        }
    }

    /// Whether the canary has had so much time for its answer; time in which the watch was not there does not count.
    fn has_waited(&mut self, time: Duration, now: Instant) -> bool {
        self.waited += self.pace.lap(now);
        self.waited >= time
    }
}

#[derive(Debug, Default)]
enum Stage {
    #[default]
    Calm,
    Local(Demoted),
    Global(Demoted),
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
        if self.is_over() && self.rests_until.is_some_and(|until| now >= until) {
            self.rests_until = None;
            shared.roster.resume();
        }
        match std::mem::take(&mut self.stage) {
            Stage::Calm => self.listen(shared, canaries, now),
            Stage::Local(demoted) | Stage::Global(demoted) if self.all_answered(canaries) => {
                self.examine(shared, now, Some(demoted.since));
            }
            Stage::Local(mut demoted) => {
                self.stage = if demoted.has_waited(GRACE, now) {
                    let raised = shared.roster.holds(Hold::is_raised);
                    self.suspects = raised;
                    shared.roster.suspend(None);
                    Stage::Global(demoted)
                } else {
                    Stage::Local(demoted)
                };
            }
            Stage::Global(mut demoted) => {
                if !demoted.has_waited(2 * GRACE, now) {
                    self.stage = Stage::Global(demoted);
                    return;
                }
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
                    let accounts = &shared.accounts;
                    canaries
                        .iter_mut()
                        .for_each(|canary| canary.ask(accounts, now));
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
        let mut taken = HashMap::new();
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
                canary.ask(&shared.accounts, now);
            } else if silence >= PATIENCE {
                self.silent.insert(canary.cpu);
            }
        }
        if self.silent.is_empty() || shared.roster.holds(Hold::is_up).is_empty() {
            self.suspect(shared, taken, now);
            return;
        }
        shared.counts.alarms.fetch_add(1, Relaxed);
        let silent = &self.silent;
        let evasive = |&cpu: &usize| shared.accounts.evasive(cpu, (ROUND + PATIENCE) / 2);
        let evasive = silent.iter().flat_map(evasive);
        self.evasive = evasive.collect();
        let here = |hold: &Hold| hold.may_run_on(silent) && hold.is_up();
        self.suspects = shared.roster.holds(here);
        let asked = |cpu: usize| now - shared.accounts.silence(cpu, now);
        let intrudes = |hold: &Hold| {
            silent.contains(&hold.owner.cpu) && hold.has_intruded_twice(asked(hold.owner.cpu))
        };
        self.intruders = shared.roster.holds(intrudes);
        shared.roster.suspend(Some(silent));
        self.stage = Stage::Local(Demoted::new(now));
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
        let raised = Hold::is_up;
        if self.evasive.is_empty()
            && shared
                .roster
                .holds(|hold| raised(hold) && hold.may_run_on(&taken))
                .is_empty()
        {
            self.foreign_until = Some(now + FOREIGN);
            // It is taken all the same.
            self.rests_until = self.rests_until.map(|_| now);
            return;
        }
        shared.counts.alarms.fetch_add(1, Relaxed);
        self.silent = taken;
        // It may be lent from another CPU.
        self.suspects = shared.roster.holds(raised);
        self.examine(shared, now, None);
    }

    /// `demoted`: when what is elevated was, for a silence.
    fn examine(&mut self, shared: &Shared, now: Instant, demoted: Option<Instant>) {
        self.stood_still = demoted.is_some_and(|demoted| {
            let since = demoted - (ROUND + PATIENCE);
            let silent = &mut self.silent.iter();
            silent.any(|&cpu| shared.accounts.has_stood_still(cpu, since))
        });
        let holds = self.examined(shared);
        let mut culprits = HashMap::new();
        for hold in std::mem::take(&mut self.intruders) {
            let (tid, pid) = (hold.tid, hold.owner.pid);
            let text =
                || format!("thread {tid} of process {pid} has used the CPU when it was others'");
            culprits.entry(hold.owner.user).or_insert_with(text);
        }
        // After a silence all suspects are demoted meanwhile; else they go on.
        let patience = demoted.map_or(INQUIRY, |_| bars::FIRST);
        let trial = Box::new(Trial {
            inquiry: Inquiry::start(shared, &holds, patience, now),
            culprits,
            inquiries: 0,
            next: now + ROUND,
            silence: demoted.map(|demoted| ROUND + PATIENCE + (now - demoted)),
            demoted,
        });
        self.go_on(shared, trial, now);
    }

    /// Looks for culprits for a while; with all looked at, the verdict.
    fn go_on(&mut self, shared: &Shared, mut trial: Box<Trial>, now: Instant) {
        let Trial {
            inquiry, culprits, ..
        } = &mut *trial;
        if inquiry.hear(culprits, now) {
            self.stage = Stage::Examined(trial);
            return;
        }
        // What is lent in pieces may just not have been.
        if self.is_nothing_found(&trial) && trial.inquiries < INQUIRIES {
            if now >= trial.next {
                let patience = match trial.demoted {
                    Some(demoted) => (demoted + bars::FIRST).saturating_duration_since(now),
                    None => INQUIRY,
                };
                trial.inquiries += 1;
                trial.next = now + ROUND;
                trial.inquiry = Inquiry::start(shared, &self.examined(shared), patience, now);
            }
            self.stage = Stage::Examined(trial);
            return;
        }
        self.judge(shared, &trial, now);
        self.finish(shared);
    }

    /// Whether all that can be known so far is that a CPU was taken.
    fn is_nothing_found(&self, trial: &Trial) -> bool {
        let explained = self.stood_still || (trial.demoted.is_some() && !self.evasive.is_empty());
        trial.culprits.is_empty() && !explained && trial.inquiry.keepers().next().is_none()
    }

    /// What is elevated, and what was before it was demoted.
    fn examined(&self, shared: &Shared) -> Vec<Arc<Hold>> {
        let suspects: HashSet<Tid> = self.suspects.iter().map(|hold| hold.tid).collect();
        let may_be = |hold: &Hold| hold.is_up() || suspects.contains(&hold.tid);
        shared.roster.holds(may_be)
    }

    fn judge(&mut self, shared: &Shared, trial: &Trial, now: Instant) {
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
        let suspicion = Suspicion::of(Findings {
            has_culprits: !trial.culprits.is_empty(),
            stood_still: self.stood_still,
            keepers: trial.inquiry.keepers().collect(),
            evasive: std::mem::take(&mut self.evasive),
        });
        let suspect = |users: HashSet<u32>, what: &str| {
            for user in users {
                shared.bars.suspect(user, now);
                shared.eject(format!("user {user} is {}: {what}", until(bars::FIRST)));
            }
        };
        match suspicion {
            Suspicion::None if trial.culprits.is_empty() && self.stood_still => {
                let silent = &self.silent;
                return shared.complain("foreign", || {
                    format!(
                        "the CPUs {silent:?} stood still, for the daemon too: the kernel throttles real-time threads, the host has no time, or something else is real-time there"
                    )
                });
            }
            Suspicion::None => {}
            Suspicion::Keepers(users) => {
                suspect(users, "it keeps the daemon from looking at its threads");
            }
            Suspicion::Evasive(users) => {
                suspect(users, "its threads end before it can be seen what they use");
            }
            Suspicion::Rest => {
                // In pieces nothing is demoted yet, and it may be lent from another CPU.
                if trial.demoted.is_none() {
                    shared.roster.suspend(None);
                }
                let until = trial.demoted.unwrap_or(now) + bars::FIRST;
                self.rests_until = self.rests_until.max(Some(until));
                let count = self.suspects.len();
                shared.eject(format!("{count} threads rest for 1 s, and no user is to blame: it is not found what takes the CPU"));
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
        if self.rests_until.is_none() {
            shared.roster.resume();
        }
        self.suspects.clear();
        self.intruders.clear();
        self.evasive.clear();
        self.stage = Stage::Calm;
    }
}
