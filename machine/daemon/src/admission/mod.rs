//! Which users may come in, and how often: counts and rates per user. Pure, with time passed in.
//!
//! **Kept places.** A quarter of everything that is limited for all users together is kept for the users that the configuration names,
//! and half of that for root, so that strangers, however many users they are, do not keep those out.

pub(crate) mod listen;
pub(crate) mod peer;

use std::collections::HashMap;
use std::time::Instant;

use upshift_core::TokenBucket;

use crate::bounds::{ns, per_second};
use crate::config::Limits;

/// Users of which something is remembered at most; one with nothing open is forgotten first.
const USERS: usize = 2048;

/// The users for which places are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Standing {
    /// The rest.
    Anybody,
    /// Users that a rule lets in.
    Named,
    /// The administrator.
    Root,
}

impl Standing {
    /// How many of `all` places may be taken when one of these comes.
    pub(crate) fn of(self, all: usize) -> usize {
        match self {
            Standing::Anybody => all - all / 4,
            Standing::Named => all - all / 8,
            Standing::Root => all,
        }
    }
}

/// What a registration takes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load<'a> {
    pub(crate) threads: usize,
    /// Of each vCPU.
    pub(crate) cpus: &'a [usize],
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Admission {
    limits: Limits,
    users: HashMap<u32, User>,
    connections: usize,
    registrations: usize,
    /// Of all registrations.
    threads: usize,
    vcpus: usize,
    /// What there is for all of these.
    descriptors: usize,
}

/// Descriptors of a connection (socket, process), and of a registration beside those of its vCPUs and threads.
const OF_ONE: usize = 2;

/// Threads of all registrations: half of what can be recorded; the other half is for assigned programs.
pub(crate) const THREADS: usize = upshift_elevate::MAX_CAPACITY / 2;

#[derive(Debug)]
struct User {
    connections: usize,
    registrations: usize,
    threads: usize,
    /// vCPUs on each CPU.
    vcpus: HashMap<usize, usize>,
    rate: TokenBucket,
    /// Of questions after the state of everything, which take long to answer.
    questions: TokenBucket,
}

/// What the daemon opens itself, beside what it opens for clients and assigned programs.
const OWN: usize = 64;

/// Censuses of a user per second, after a burst of as many.
const QUESTIONS: u64 = 20;

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

    /// With so many descriptors, of which a quarter is for assigned programs and some are the daemon's own.
    pub(crate) fn with_descriptors(mut self, descriptors: usize) -> Admission {
        self.descriptors = (descriptors - descriptors / 4).saturating_sub(OWN);
        self
    }

    /// Whether there are descriptors for `more`.
    fn check_descriptors(&self, more: usize, user: u32, standing: Standing) -> Result<(), String> {
        let places = OF_ONE * (self.connections + self.registrations);
        let used = places + self.threads + self.vcpus;
        if used + more <= standing.of(self.descriptors) {
            return Ok(());
        }
        Err(format!(
            "{used} descriptors are in use, and the rest is kept for others than user {user}: raise the daemon's limit on open files (LimitNOFILE)"
        ))
    }

    /// Others from now on; clients that are in stay in.
    pub(crate) fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// A user connects.
    ///
    /// # Errors
    /// Why not, for people.
    pub(crate) fn connect(
        &mut self,
        user: u32,
        standing: Standing,
        now: Instant,
    ) -> Result<(), String> {
        if self.connections >= standing.of(self.limits.connections) {
            return Err(format!(
                "there are {} connections, as many as limits.connections allows for user {user}",
                self.connections
            ));
        }
        self.check_descriptors(OF_ONE, user, standing)?;
        if self.users.len() >= USERS {
            self.users
                .retain(|_, it| it.connections > 0 || !it.rate.is_full(ns(now)));
        }
        if self.users.len() >= USERS && standing == Standing::Anybody {
            return Err(format!("{USERS} users have just been here: try again"));
        }
        let rate = u64::from(self.limits.registrations_per_second);
        let found = self.users.entry(user).or_insert_with(|| User {
            connections: 0,
            registrations: 0,
            threads: 0,
            vcpus: HashMap::new(),
            rate: per_second(rate, rate, now),
            questions: per_second(QUESTIONS, QUESTIONS, now),
        });
        if found.connections >= self.limits.connections_per_user {
            return Err(format!(
                "user {user} has {} connections, as many as limits.connections_per_user allows",
                found.connections
            ));
        }
        found.connections += 1;
        self.connections += 1;
        Ok(())
    }

    /// A connection of a user is over; whether it has others.
    pub(crate) fn disconnect(&mut self, user: u32) -> bool {
        self.connections = self.connections.saturating_sub(1);
        self.users.get_mut(&user).is_some_and(|user| {
            user.connections = user.connections.saturating_sub(1);
            user.connections > 0
        })
    }

    /// A connected user asks for a census.
    ///
    /// # Errors
    /// Why not, for people.
    pub(crate) fn ask(
        &mut self,
        user: u32,
        standing: Standing,
        now: Instant,
    ) -> Result<(), String> {
        let found = self.users.get_mut(&user);
        match found
            .is_none_or(|it| standing > Standing::Anybody || it.questions.try_take(1, ns(now)))
        {
            true => Ok(()),
            false => Err(format!(
                "user {user} asks for more than {QUESTIONS} censuses a second: wait"
            )),
        }
    }

    /// A connected user registers.
    ///
    /// # Errors
    /// Why not, for people.
    pub(crate) fn register(
        &mut self,
        user: u32,
        standing: Standing,
        load: Load<'_>,
        now: Instant,
    ) -> Result<(), String> {
        let descriptors = OF_ONE + load.cpus.len() + load.threads;
        let descriptors = self.check_descriptors(descriptors, user, standing);
        let limits = &self.limits;
        let Some(found) = self.users.get_mut(&user) else {
            return Err("this user is not connected".to_string());
        };
        if !found.rate.try_take(1, ns(now)) {
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
        found.check_threads(user, threads, limits)?;
        check_all_threads(self.threads, threads, user, standing)?;
        if found.registrations >= limits.per_user {
            return Err(format!(
                "user {user} has {} registrations, as many as limits.per_user allows",
                limits.per_user
            ));
        }
        if self.registrations >= standing.of(limits.registrations) {
            return Err(format!(
                "there are {} registrations, as many as limits.registrations allows for user {user}",
                self.registrations
            ));
        }
        for &cpu in cpus {
            *found.vcpus.entry(cpu).or_default() += 1;
        }
        if let Some((cpu, _)) = found
            .vcpus
            .iter()
            .find(|(_, many)| **many > limits.per_user)
        {
            let text = format!(
                "user {user} has more vCPUs on CPU {cpu} than the {} of limits.per_user",
                limits.per_user
            );
            found.leaves(cpus);
            return Err(text);
        }
        found.registrations += 1;
        found.threads += threads;
        self.threads += threads;
        self.vcpus += cpus.len();
        self.registrations += 1;
        Ok(())
    }

    /// A registered user has more threads.
    ///
    /// # Errors
    /// Why not, for people.
    pub(crate) fn add_threads(
        &mut self,
        user: u32,
        standing: Standing,
        added: usize,
    ) -> Result<(), String> {
        self.check_descriptors(added, user, standing)?;
        if let Some(found) = self.users.get_mut(&user) {
            found.check_threads(user, added, &self.limits)?;
            check_all_threads(self.threads, added, user, standing)?;
            found.threads += added;
            self.threads += added;
        }
        Ok(())
    }

    /// A registered user has fewer threads.
    pub(crate) fn remove_threads(&mut self, user: u32, removed: usize) {
        if let Some(found) = self.users.get_mut(&user) {
            found.threads = found.threads.saturating_sub(removed);
            self.threads = self.threads.saturating_sub(removed);
        }
    }

    /// What [`Admission::register`] let in is over.
    pub(crate) fn unregister(&mut self, user: u32, load: Load<'_>) {
        if let Some(user) = self.users.get_mut(&user) {
            user.registrations = user.registrations.saturating_sub(1);
            user.threads = user.threads.saturating_sub(load.threads);
            user.leaves(load.cpus);
        }
        self.registrations = self.registrations.saturating_sub(1);
        self.threads = self.threads.saturating_sub(load.threads);
        self.vcpus = self.vcpus.saturating_sub(load.cpus.len());
    }
}

fn check_all_threads(
    threads: usize,
    more: usize,
    user: u32,
    standing: Standing,
) -> Result<(), String> {
    if threads + more <= standing.of(THREADS) {
        return Ok(());
    }
    Err(format!(
        "{threads} threads are registered, and no more than {THREADS} can be, of which some are kept for others than user {user}"
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

    fn leaves(&mut self, cpus: &[usize]) {
        for cpu in cpus {
            if let Some(many) = self.vcpus.get_mut(cpu) {
                *many = many.saturating_sub(1);
            }
        }
        self.vcpus.retain(|_, many| *many > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const SOME: Load<'_> = Load {
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
    fn users_do_not_take_each_others_places() {
        let now = Instant::now();
        let mut admission = Admission::new(limits());
        let connect = |admission: &mut Admission, user| {
            admission.connect(user, Standing::Anybody, now).is_ok()
        };
        for _ in 0..3 {
            assert!(connect(&mut admission, 1));
        }
        assert!(!connect(&mut admission, 1));
        assert!(connect(&mut admission, 2));
        admission.disconnect(1);
        assert!(connect(&mut admission, 1));
        let mut register = |user, threads, cpus: &[usize]| {
            let load = Load { threads, cpus };
            let outcome = admission.register(user, Standing::Anybody, load, now);
            outcome.map_or_else(|text| text, |()| "in".to_string())
        };
        assert_eq!(register(1, 4, &[0]), "in");
        assert!(register(1, 5, &[0]).contains("limits.threads"));
        assert!(register(1, 3, &[0]).contains("threads_per_user"));
        assert!(register(1, 1, &[0, 0]).contains("on CPU 0"));
        assert_eq!(register(1, 1, &[0, 1]), "in");
        assert!(register(1, 1, &[0]).contains("per_user"));
        assert_eq!(register(2, 1, &[0]), "in");
        assert!(register(2, 1, &[0]).contains("limits.registrations"));
        admission.unregister(1, SOME);
        assert!(admission.register(2, Standing::Anybody, SOME, now).is_ok());
    }

    #[test]
    fn strangers_leave_places_for_the_named_and_these_for_root() {
        let now = Instant::now();
        let mut admission = Admission::new(limits());
        for user in 0..6 {
            assert!(
                admission
                    .connect(100 + user, Standing::Anybody, now)
                    .is_ok()
            );
        }
        let refused = admission.connect(200, Standing::Anybody, now).unwrap_err();
        assert!(
            refused.contains("limits.connections allows for user 200"),
            "{refused}"
        );
        assert!(admission.connect(7, Standing::Named, now).is_ok());
        assert!(admission.connect(8, Standing::Named, now).is_err());
        assert!(admission.connect(0, Standing::Root, now).is_ok());
        for user in 0..3 {
            let joined = admission.register(100 + user, Standing::Anybody, SOME, now);
            assert!(joined.is_ok());
        }
        assert!(
            admission
                .register(104, Standing::Anybody, SOME, now)
                .is_err()
        );
        assert!(admission.register(0, Standing::Root, SOME, now).is_ok());
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
        let mut taken = 0;
        for user in 0..10 {
            assert!(admission.connect(user + 1, Standing::Anybody, now).is_ok());
            while admission
                .register(user + 1, Standing::Anybody, many, now)
                .is_ok()
            {
                taken += 128;
            }
        }
        assert_eq!(taken, THREADS / 4 * 3);
        assert!(admission.add_threads(1, Standing::Anybody, 1).is_err());
        assert!(admission.connect(0, Standing::Root, now).is_ok());
        assert!(admission.register(0, Standing::Root, many, now).is_ok());
        admission.unregister(1, many);
        admission.unregister(1, many);
        assert!(admission.add_threads(1, Standing::Anybody, 128).is_ok());
        admission.remove_threads(1, 128);
        assert_eq!(admission.threads, taken - 128);
    }

    #[test]
    fn a_client_that_registers_all_the_time_has_to_wait() {
        let now = Instant::now();
        let mut admission = Admission::new(limits());
        let standing = Standing::Anybody;
        assert!(admission.connect(1, standing, now).is_ok());
        for _ in 0..10 {
            admission.register(1, standing, SOME, now).unwrap();
            admission.unregister(1, SOME);
        }
        let refused = admission.register(1, standing, SOME, now).unwrap_err();
        assert!(refused.contains("wait"));
        let later = now + Duration::from_millis(101);
        assert!(admission.register(1, standing, SOME, later).is_ok());
    }

    #[test]
    fn a_thousand_users_that_left_are_forgotten() {
        let now = Instant::now();
        let mut admission = Admission::new(limits());
        for user in 0..5000 {
            assert!(admission.connect(user, Standing::Anybody, now).is_ok());
            admission.disconnect(user);
        }
        assert!(admission.users.len() <= USERS);
    }
}
