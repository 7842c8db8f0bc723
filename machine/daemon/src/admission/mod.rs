//! Admits connections and registrations within limits on the counts and rates of each user. The
//! caller passes the time.
//!
//! **Reserved capacity.** A quarter of each limit for all users together is reserved for the users
//! that the configuration names, and half of that quarter for root, so that other users cannot
//! exhaust a limit, however many they are.

pub(crate) mod listen;
pub(crate) mod peer;

use std::collections::HashMap;
use std::time::Instant;

use upshift_core::TokenBucket;

use crate::bounds::{bucket_per_second, timestamp_ns};
use crate::config::Limits;

/// Maximum number of users with a record; users without open connections are forgotten first.
const MAX_USERS: usize = 2048;

/// The part of the capacity that a user may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Trust {
    /// Users that no rule names.
    Anybody,
    /// Users that a rule admits.
    Named,
    /// The administrator.
    Root,
}

impl Trust {
    pub(crate) fn capacity(self, all: usize) -> usize {
        match self {
            Trust::Anybody => all - all / 4,
            Trust::Named => all - all / 8,
            Trust::Root => all,
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Load<'a> {
    pub(crate) threads: usize,
    pub(crate) cpus: &'a [usize],
}

#[derive(Debug)]
pub(crate) struct Admission {
    limits: Limits,
    users: HashMap<u32, User>,
    connections: usize,
    registrations: usize,
    /// Number of threads of all registrations.
    threads: usize,
    /// Number of vCPUs of all registrations.
    vcpus: usize,
    /// Maximum number of descriptors for clients.
    descriptors: usize,
}

/// Number of descriptors that a connection uses (socket, process), and that a registration uses in
/// addition to those for its vCPUs and threads.
const FIXED_DESCRIPTORS: usize = 2;

/// Maximum number of threads of all registrations together, which is half of the elevator's
/// capacity. The other half is for assigned programs.
pub(crate) const THREADS: usize = upshift_elevate::MAX_CAPACITY / 2;

#[derive(Debug)]
struct User {
    connections: usize,
    registrations: usize,
    threads: usize,
    /// Number of the user's vCPUs on each CPU.
    vcpus: HashMap<usize, usize>,
    /// Rate of registrations.
    rate: TokenBucket,
    /// Rate of censuses, which take long to answer.
    censuses: TokenBucket,
}

/// Number of descriptors that the daemon itself uses, in addition to the descriptors for clients
/// and assigned programs.
const OWN_DESCRIPTORS: usize = 64;

/// Number of censuses that a user may request per second, after a burst of the same number.
const CENSUSES_PER_SECOND: u64 = 20;

impl Admission {
    pub(crate) fn new(limits: Limits) -> Admission {
        Admission {
            limits,
            users: HashMap::new(),
            connections: 0,
            registrations: 0,
            threads: 0,
            vcpus: 0,
            descriptors: usize::MAX,
        }
    }

    /// Limits the descriptors in use to `descriptors`, minus a quarter for assigned programs and
    /// minus the descriptors of the daemon itself.
    pub(crate) fn with_descriptors(mut self, descriptors: usize) -> Admission {
        self.descriptors = (descriptors - descriptors / 4).saturating_sub(OWN_DESCRIPTORS);
        self
    }

    fn check_descriptors(&self, more: usize, user: u32, trust: Trust) -> Result<(), String> {
        let fixed = FIXED_DESCRIPTORS * (self.connections + self.registrations);
        let used = fixed + self.threads + self.vcpus;
        if used + more <= trust.capacity(self.descriptors) {
            return Ok(());
        }
        Err(format!(
            "{used} descriptors are in use, and the rest is reserved for users other than user {user}: raise the daemon's limit on open files (LimitNOFILE)"
        ))
    }

    /// Replaces the limits. Clients that exceed the new limits stay.
    pub(crate) fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Admits a connection of `user`. Here and below, an error is the reason for a refusal, as
    /// text.
    pub(crate) fn connect(&mut self, user: u32, trust: Trust, now: Instant) -> Result<(), String> {
        if self.connections >= trust.capacity(self.limits.connections) {
            return Err(format!(
                "there are {} connections, as many as limits.connections allows for user {user}",
                self.connections
            ));
        }
        self.check_descriptors(FIXED_DESCRIPTORS, user, trust)?;
        if self.users.len() >= MAX_USERS {
            self.users
                .retain(|_, user| user.connections > 0 || !user.rate.is_full(timestamp_ns(now)));
        }
        if self.users.len() >= MAX_USERS && trust == Trust::Anybody {
            return Err(format!(
                "{MAX_USERS} users have connected recently, and no more are admitted: try again in a second"
            ));
        }
        let rate = u64::from(self.limits.registrations_per_second);
        let record = self.users.entry(user).or_insert_with(|| User {
            connections: 0,
            registrations: 0,
            threads: 0,
            vcpus: HashMap::new(),
            rate: bucket_per_second(rate, rate, now),
            censuses: bucket_per_second(CENSUSES_PER_SECOND, CENSUSES_PER_SECOND, now),
        });
        if record.connections >= self.limits.connections_per_user {
            return Err(format!(
                "user {user} has {} connections, as many as limits.connections_per_user allows",
                record.connections
            ));
        }
        record.connections += 1;
        self.connections += 1;
        Ok(())
    }

    /// Removes a connection of the user. Returns whether the user has other connections.
    pub(crate) fn disconnect(&mut self, user: u32) -> bool {
        self.connections = self.connections.saturating_sub(1);
        self.users.get_mut(&user).is_some_and(|user| {
            user.connections = user.connections.saturating_sub(1);
            user.connections > 0
        })
    }

    pub(crate) fn take_census(
        &mut self,
        user: u32,
        trust: Trust,
        now: Instant,
    ) -> Result<(), String> {
        let exceeds = self.users.get_mut(&user).is_some_and(|record| {
            trust == Trust::Anybody && !record.censuses.try_take(1, timestamp_ns(now))
        });
        if exceeds {
            return Err(format!(
                "user {user} asks for more than {CENSUSES_PER_SECOND} censuses a second: wait"
            ));
        }
        Ok(())
    }

    pub(crate) fn register(
        &mut self,
        user: u32,
        trust: Trust,
        load: Load<'_>,
        now: Instant,
    ) -> Result<(), String> {
        let descriptors = FIXED_DESCRIPTORS + load.cpus.len() + load.threads;
        let descriptors = self.check_descriptors(descriptors, user, trust);
        let limits = &self.limits;
        let Some(record) = self.users.get_mut(&user) else {
            return Err("this user is not connected".to_string());
        };
        if !record.rate.try_take(1, timestamp_ns(now)) {
            return Err(format!(
                "user {user} registers more than {} times a second: wait",
                limits.registrations_per_second
            ));
        }
        descriptors?;
        let Load { threads, cpus } = load;
        if threads > limits.threads {
            return Err(format!(
                "{threads} threads are more than the {} of limits.threads",
                limits.threads
            ));
        }
        record.check_threads(user, threads, limits)?;
        check_all_threads(self.threads, threads, user, trust)?;
        if record.registrations >= limits.per_user {
            return Err(format!(
                "user {user} has {} registrations, as many as limits.per_user allows",
                limits.per_user
            ));
        }
        if self.registrations >= trust.capacity(limits.registrations) {
            return Err(format!(
                "there are {} registrations, as many as limits.registrations allows for user {user}",
                self.registrations
            ));
        }
        for &cpu in cpus {
            *record.vcpus.entry(cpu).or_default() += 1;
        }
        if let Some((cpu, _)) = record
            .vcpus
            .iter()
            .find(|(_, count)| **count > limits.per_user)
        {
            let text = format!(
                "user {user} has more vCPUs on CPU {cpu} than the {} of limits.per_user",
                limits.per_user
            );
            record.remove_vcpus(cpus);
            return Err(text);
        }
        record.registrations += 1;
        record.threads += threads;
        self.threads += threads;
        self.vcpus += cpus.len();
        self.registrations += 1;
        Ok(())
    }

    pub(crate) fn add_threads(
        &mut self,
        user: u32,
        trust: Trust,
        added: usize,
    ) -> Result<(), String> {
        self.check_descriptors(added, user, trust)?;
        if let Some(record) = self.users.get_mut(&user) {
            record.check_threads(user, added, &self.limits)?;
            check_all_threads(self.threads, added, user, trust)?;
            record.threads += added;
            self.threads += added;
        }
        Ok(())
    }

    pub(crate) fn remove_threads(&mut self, user: u32, removed: usize) {
        if let Some(record) = self.users.get_mut(&user) {
            record.threads = record.threads.saturating_sub(removed);
            self.threads = self.threads.saturating_sub(removed);
        }
    }

    pub(crate) fn unregister(&mut self, user: u32, load: Load<'_>) {
        if let Some(user) = self.users.get_mut(&user) {
            user.registrations = user.registrations.saturating_sub(1);
            user.threads = user.threads.saturating_sub(load.threads);
            user.remove_vcpus(load.cpus);
        }
        self.registrations = self.registrations.saturating_sub(1);
        self.threads = self.threads.saturating_sub(load.threads);
        self.vcpus = self.vcpus.saturating_sub(load.cpus.len());
    }
}

fn check_all_threads(threads: usize, more: usize, user: u32, trust: Trust) -> Result<(), String> {
    if threads + more <= trust.capacity(THREADS) {
        return Ok(());
    }
    Err(format!(
        "{threads} of at most {THREADS} threads are registered, and the rest is reserved for users other than user {user}"
    ))
}

impl User {
    fn check_threads(&self, user: u32, more: usize, limits: &Limits) -> Result<(), String> {
        if self.threads + more <= limits.threads_per_user {
            return Ok(());
        }
        Err(format!(
            "user {user} would have more threads than the {} of limits.threads_per_user",
            limits.threads_per_user
        ))
    }

    fn remove_vcpus(&mut self, cpus: &[usize]) {
        for cpu in cpus {
            if let Some(count) = self.vcpus.get_mut(cpu) {
                *count = count.saturating_sub(1);
            }
        }
        self.vcpus.retain(|_, count| *count > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const ONE_THREAD: Load<'_> = Load {
        threads: 1,
        cpus: &[0],
    };

    fn limits() -> Limits {
        Limits {
            registrations: 4,
            per_user: 2,
            connections: 8,
            connections_per_user: 3,
            threads: 4,
            threads_per_user: 6,
            registrations_per_second: 10,
            ..Limits::default()
        }
    }

    #[test]
    fn users_do_not_use_each_others_space() {
        let now = Instant::now();
        let mut admission = Admission::new(limits());
        let connect =
            |admission: &mut Admission, user| admission.connect(user, Trust::Anybody, now).is_ok();
        for _ in 0..3 {
            assert!(connect(&mut admission, 1));
        }
        assert!(!connect(&mut admission, 1));
        assert!(connect(&mut admission, 2));
        admission.disconnect(1);
        assert!(connect(&mut admission, 1));
        let mut register = |user, threads, cpus: &[usize]| {
            let load = Load { threads, cpus };
            let outcome = admission.register(user, Trust::Anybody, load, now);
            outcome.map_or_else(|text| text, |()| "admitted".to_string())
        };
        assert_eq!(register(1, 4, &[0]), "admitted");
        assert!(register(1, 5, &[0]).contains("limits.threads"));
        assert!(register(1, 3, &[0]).contains("threads_per_user"));
        assert!(register(1, 1, &[0, 0]).contains("on CPU 0"));
        assert_eq!(register(1, 1, &[0, 1]), "admitted");
        assert!(register(1, 1, &[0]).contains("per_user"));
        assert_eq!(register(2, 1, &[0]), "admitted");
        assert!(register(2, 1, &[0]).contains("limits.registrations"));
        admission.unregister(1, ONE_THREAD);
        assert!(
            admission
                .register(2, Trust::Anybody, ONE_THREAD, now)
                .is_ok()
        );
    }

    #[test]
    fn other_users_leave_space_for_named_users_and_named_users_for_root() {
        let now = Instant::now();
        let mut admission = Admission::new(limits());
        // Three quarters of the 8 connections and of the 4 registrations are for all users.
        for user in 0..6 {
            assert!(admission.connect(100 + user, Trust::Anybody, now).is_ok());
        }
        let refused = admission.connect(200, Trust::Anybody, now).unwrap_err();
        assert!(
            refused.contains("limits.connections allows for user 200"),
            "{refused}"
        );
        assert!(admission.connect(7, Trust::Named, now).is_ok());
        assert!(admission.connect(8, Trust::Named, now).is_err());
        assert!(admission.connect(0, Trust::Root, now).is_ok());
        for user in 0..3 {
            let joined = admission.register(100 + user, Trust::Anybody, ONE_THREAD, now);
            assert!(joined.is_ok());
        }
        assert!(
            admission
                .register(104, Trust::Anybody, ONE_THREAD, now)
                .is_err()
        );
        assert!(admission.register(0, Trust::Root, ONE_THREAD, now).is_ok());
    }

    #[test]
    fn users_together_do_not_take_all_threads() {
        let now = Instant::now();
        let limits = Limits {
            registrations: 4096,
            per_user: 1024,
            threads: 128,
            threads_per_user: 1024,
            ..Limits::default()
        };
        let mut admission = Admission::new(limits);
        let many = Load {
            threads: 128,
            cpus: &[0],
        };
        let mut registered_threads = 0;
        for user in 0..10 {
            assert!(admission.connect(user + 1, Trust::Anybody, now).is_ok());
            while admission
                .register(user + 1, Trust::Anybody, many, now)
                .is_ok()
            {
                registered_threads += 128;
            }
        }
        assert_eq!(registered_threads, THREADS / 4 * 3);
        assert!(admission.add_threads(1, Trust::Anybody, 1).is_err());
        assert!(admission.connect(0, Trust::Root, now).is_ok());
        assert!(admission.register(0, Trust::Root, many, now).is_ok());
        admission.unregister(1, many);
        admission.unregister(1, many);
        assert!(admission.add_threads(1, Trust::Anybody, 128).is_ok());
        admission.remove_threads(1, 128);
        assert_eq!(admission.threads, registered_threads - 128);
    }

    #[test]
    fn a_client_that_registers_all_the_time_has_to_wait() {
        let now = Instant::now();
        let mut admission = Admission::new(limits());
        let trust = Trust::Anybody;
        assert!(admission.connect(1, trust, now).is_ok());
        for _ in 0..10 {
            admission.register(1, trust, ONE_THREAD, now).unwrap();
            admission.unregister(1, ONE_THREAD);
        }
        let refused = admission.register(1, trust, ONE_THREAD, now).unwrap_err();
        assert!(refused.contains("wait"));
        // At 10 registrations per second, the next one is allowed after 100 ms.
        let later = now + Duration::from_millis(101);
        assert!(admission.register(1, trust, ONE_THREAD, later).is_ok());
    }

    #[test]
    fn users_that_left_are_forgotten() {
        let now = Instant::now();
        let mut admission = Admission::new(limits());
        for user in 0..5000 {
            assert!(admission.connect(user, Trust::Anybody, now).is_ok());
            admission.disconnect(user);
        }
        assert!(admission.users.len() <= MAX_USERS);
    }
}
