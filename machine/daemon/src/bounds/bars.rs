//! [`Bars`]: users that are not elevated for a while, because of what their threads did.
//!
//! An offence costs ten times what it took from others before it was noticed, a second at least, and each further one twice the last, up
//! to [`LONGEST`]. A user that has been good for ten times its last bar starts over. So what an offence takes, say 0.1 s, a user has once
//! in 11 s at most in the long run: 1 %.
//!
//! One user is one offender, however many processes it starts. Asking costs one load while no user is barred.

use std::collections::HashMap;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The least that an offence costs.
pub(crate) const FIRST: Duration = Duration::from_secs(1);

/// An offence costs so many times what it took.
const PRICE: u32 = 10;

/// The longest bar: an hour or so, 2¹² times the first.
const LONGEST: Duration = Duration::from_secs(1 << 12);

/// For so many times its last bar a user has to be good.
const PROBATION: u32 = 10;

/// Users remembered at most. Beyond, the bars that end first are forgotten.
const USERS: usize = 1024;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Bars {
    users: Mutex<HashMap<u32, Bar>>,
    /// How many are remembered.
    count: AtomicUsize,
}

#[derive(Debug, Clone, Copy)]
struct Bar {
    until: Instant,
    length: Duration,
}

impl Bars {
    fn lock(&self) -> MutexGuard<'_, HashMap<u32, Bar>> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bars `user` from `now` on for something that was noticed soon; for how long.
    pub(crate) fn punish(&self, user: u32, now: Instant) -> Duration {
        self.punish_for(user, Duration::ZERO, now)
    }

    /// As [`Bars::punish`], for something that took so long from others.
    pub(crate) fn punish_for(&self, user: u32, took: Duration, now: Instant) -> Duration {
        let mut users = self.lock();
        let least = (took * PRICE).max(FIRST);
        let length = match users.get(&user) {
            Some(last) if now < last.until + last.length * PROBATION => {
                (last.length * 2).clamp(least, LONGEST)
            }
            _ => least,
        };
        self.insert(&mut users, user, now, length);
        length
    }

    /// Bars `user` for the shortest time, without counting it as an offence: it may be another's.
    pub(crate) fn suspect(&self, user: u32, now: Instant) {
        let mut users = self.lock();
        if users.get(&user).is_none_or(|last| last.until < now + FIRST) {
            let length = users.get(&user).map_or(FIRST / 2, |last| last.length);
            users.insert(
                user,
                Bar {
                    until: now + FIRST,
                    length,
                },
            );
            self.trim(&mut users, now);
        }
    }

    fn insert(&self, users: &mut HashMap<u32, Bar>, user: u32, now: Instant, length: Duration) {
        let until = now + length;
        users.insert(user, Bar { until, length });
        self.trim(users, now);
    }

    fn trim(&self, users: &mut HashMap<u32, Bar>, now: Instant) {
        if users.len() > USERS {
            users.retain(|_, bar| now < bar.until + bar.length * PROBATION);
        }
        if users.len() > USERS
            && let Some((&first, _)) = users.iter().min_by_key(|(_, bar)| bar.until)
        {
            users.remove(&first);
        }
        self.count.store(users.len(), Release);
    }

    /// Whether `user` is not to be elevated now.
    pub(crate) fn is_barred(&self, user: u32, now: Instant) -> bool {
        self.count.load(Acquire) > 0 && self.lock().get(&user).is_some_and(|bar| now < bar.until)
    }

    /// The users barred at `now`, and for how much longer.
    pub(crate) fn all(&self, now: Instant) -> Vec<(u32, Duration)> {
        let users = self.lock();
        let barred = users.iter().filter(|(_, bar)| now < bar.until);
        barred.map(|(&user, bar)| (user, bar.until - now)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_double_and_are_forgotten_by_users_that_behave() {
        let start = Instant::now();
        let bars = Bars::default();
        assert!(!bars.is_barred(7, start));
        assert_eq!(bars.punish(7, start), FIRST);
        assert!(bars.is_barred(7, start) && !bars.is_barred(8, start));
        let later = start + FIRST;
        assert!(!bars.is_barred(7, later));
        assert_eq!(bars.punish(7, later), FIRST * 2);
        assert_eq!(bars.all(later), [(7, FIRST * 2)]);
        let good = later + FIRST * 2 * (1 + PROBATION);
        assert_eq!(bars.punish(7, good), FIRST);
        let took = Duration::from_millis(500);
        assert_eq!(bars.punish_for(8, took, good), FIRST * 5);
        assert_eq!(bars.punish_for(8, took, good + FIRST * 5), FIRST * 10);
        let mut at = good;
        for _ in 0..20 {
            at += bars.punish(7, at);
        }
        assert_eq!(bars.punish(7, at), LONGEST);
    }

    #[test]
    fn a_suspicion_is_no_offence_and_shortens_no_bar() {
        let start = Instant::now();
        let bars = Bars::default();
        bars.suspect(7, start);
        assert!(bars.is_barred(7, start));
        assert_eq!(bars.punish(7, start + FIRST), FIRST);
        assert_eq!(bars.punish(7, start + FIRST), FIRST * 2);
        bars.suspect(7, start + FIRST);
        assert!(bars.is_barred(7, start + FIRST * 2));
    }

    #[test]
    fn thousands_of_offenders_are_not_all_remembered() {
        let start = Instant::now();
        let bars = Bars::default();
        for user in 0..5000 {
            bars.punish(user, start);
        }
        assert!(bars.lock().len() <= USERS);
    }
}
