//! Who may come in, and how often: counts and rates per user. Pure, with time passed in.

use std::collections::HashMap;
use std::time::Instant;

use crate::bucket::Bucket;
use crate::config::Limits;

/// Users of which something is remembered at most; who has nothing open is forgotten first.
const USERS: usize = 1024;

/// See the module.
#[derive(Debug)]
pub(crate) struct Admission {
    limits: Limits,
    users: HashMap<u32, User>,
    registrations: usize,
}

#[derive(Debug)]
struct User {
    connections: usize,
    registrations: usize,
    rate: Bucket,
}

impl Admission {
    pub(crate) fn new(limits: Limits) -> Admission {
        Admission {
            limits,
            users: HashMap::new(),
            registrations: 0,
        }
    }

    /// A user connects; `false`: has too many connections.
    pub(crate) fn connect(&mut self, user: u32, now: Instant) -> bool {
        if self.users.len() >= USERS {
            self.users
                .retain(|_, it| it.connections > 0 || !it.rate.is_full(now));
        }
        if self.users.len() >= USERS && !self.users.contains_key(&user) {
            return false;
        }
        let rate = self.limits.registrations_per_second;
        let user = self.users.entry(user).or_insert_with(|| User {
            connections: 0,
            registrations: 0,
            rate: Bucket::new(rate, rate, now),
        });
        if user.connections >= self.limits.connections_per_user {
            return false;
        }
        user.connections += 1;
        true
    }

    pub(crate) fn disconnect(&mut self, user: u32) {
        if let Some(user) = self.users.get_mut(&user) {
            user.connections = user.connections.saturating_sub(1);
        }
    }

    /// A connected user registers, with so many threads.
    ///
    /// # Errors
    /// Why not, for people.
    pub(crate) fn register(
        &mut self,
        user: u32,
        threads: usize,
        now: Instant,
    ) -> Result<(), String> {
        let limits = &self.limits;
        let Some(found) = self.users.get_mut(&user) else {
            return Err("this user is not connected".to_string());
        };
        if !found.rate.take(now) {
            return Err(format!(
                "user {user} registers more than {} times a second: wait",
                limits.registrations_per_second
            ));
        }
        if threads > limits.threads {
            return Err(format!(
                "{threads} threads are more than the {} of limits.threads",
                limits.threads
            ));
        }
        if found.registrations >= limits.per_user {
            return Err(format!(
                "user {user} has {} registrations, as many as limits.per_user allows",
                limits.per_user
            ));
        }
        if self.registrations >= limits.registrations {
            return Err(format!(
                "there are {} registrations, as many as limits.registrations allows",
                limits.registrations
            ));
        }
        found.registrations += 1;
        self.registrations += 1;
        Ok(())
    }

    /// What [`Admission::register`] let in is over.
    pub(crate) fn unregister(&mut self, user: u32) {
        if let Some(user) = self.users.get_mut(&user) {
            user.registrations = user.registrations.saturating_sub(1);
        }
        self.registrations = self.registrations.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn limits() -> Limits {
        Limits {
            registrations: 3,
            per_user: 2,
            connections_per_user: 3,
            threads: 4,
            registrations_per_second: 10,
            ..Limits::default()
        }
    }

    #[test]
    fn users_do_not_take_each_others_places() {
        let now = Instant::now();
        let mut admission = Admission::new(limits());
        for _ in 0..3 {
            assert!(admission.connect(1, now));
        }
        assert!(!admission.connect(1, now));
        assert!(admission.connect(2, now));
        admission.disconnect(1);
        assert!(admission.connect(1, now));
        assert!(admission.register(1, 4, now).is_ok());
        assert!(
            admission
                .register(1, 5, now)
                .unwrap_err()
                .contains("limits.threads")
        );
        assert!(admission.register(1, 1, now).is_ok());
        assert!(
            admission
                .register(1, 1, now)
                .unwrap_err()
                .contains("per_user")
        );
        assert!(admission.register(2, 1, now).is_ok());
        assert!(
            admission
                .register(2, 1, now)
                .unwrap_err()
                .contains("limits.registrations")
        );
        admission.unregister(1);
        assert!(admission.register(2, 1, now).is_ok());
    }

    #[test]
    fn who_registers_all_the_time_has_to_wait() {
        let now = Instant::now();
        let mut admission = Admission::new(limits());
        assert!(admission.connect(1, now));
        for _ in 0..10 {
            admission.register(1, 1, now).unwrap();
            admission.unregister(1);
        }
        assert!(admission.register(1, 1, now).unwrap_err().contains("wait"));
        assert!(
            admission
                .register(1, 1, now + Duration::from_millis(101))
                .is_ok()
        );
    }

    #[test]
    fn a_thousand_users_who_left_are_forgotten() {
        let now = Instant::now();
        let mut admission = Admission::new(limits());
        for user in 0..5000 {
            assert!(admission.connect(user, now));
            admission.disconnect(user);
        }
        assert!(admission.users.len() <= USERS);
    }
}
