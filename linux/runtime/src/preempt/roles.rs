//! The role of each worker thread of a vCPU whose polls can be interrupted. Exactly one of these
//! threads, the *current* thread, serves the vCPU. The others wait, or hold a poll that was
//! stopped.

/// The thread that created the ring.
pub(super) const FIRST: usize = 0;
/// The *main thread*, which calls `block_on`, on vCPU 0. It polls pinned coroutines, and nothing
/// else.
pub(super) const MAIN: usize = 1;
/// No thread.
pub(super) const NONE: usize = usize::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Role {
    /// The thread waits to be given the vCPU.
    Free,
    /// The main thread waits to be given the vCPU, to poll the coroutines that are pinned to this
    /// vCPU.
    Main,
    /// The thread does not take part: it is not given the vCPU.
    Absent,
    /// The thread serves the vCPU.
    Current,
    /// The thread was stopped in the middle of a poll, which is queued.
    Suspended,
    /// The thread sleeps in the middle of a poll, which is in no queue.
    Blocked,
}

/// Roles of the threads that have been started. Thread 0, which created the ring, is preferred
/// whenever it is free. The main thread, if there is one, takes part only during `block_on`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Roles {
    roles: Vec<Role>,
    current: usize,
    main: Option<usize>,
}

impl Roles {
    pub(super) fn new(capacity: usize) -> Roles {
        let mut roles = Vec::with_capacity(capacity);
        roles.push(Role::Current);
        Roles {
            roles,
            current: 0,
            main: None,
        }
    }

    /// Adds a free thread. Does not allocate until there are more threads than the `capacity`
    /// of [`new`](Roles::new).
    pub(super) fn add(&mut self) {
        self.roles.push(Role::Free);
    }

    /// Makes a thread that cannot serve absent, if it is free. Returns false if it is not free.
    #[must_use]
    pub(super) fn make_absent(&mut self, thread: usize) -> bool {
        let is_free = self.roles[thread] == Role::Free;
        if is_free {
            self.roles[thread] = Role::Absent;
        }
        is_free
    }

    /// Adds the main thread, which is absent at first. A vCPU calls this function before it adds
    /// other threads, so the number of the main thread is [`MAIN`].
    pub(super) fn add_main(&mut self) {
        self.main = Some(self.roles.len());
        self.roles.push(Role::Absent);
    }

    /// Makes the main thread available, or absent if nothing needs it. Returns false if the thread
    /// stays in its role.
    pub(super) fn set_main(&mut self, is_available: bool) -> bool {
        let (from, to) = if is_available {
            (Role::Absent, Role::Main)
        } else {
            (Role::Main, Role::Absent)
        };
        match self.main {
            Some(main) if self.roles[main] == from => self.roles[main] = to,
            _ => return false,
        }
        true
    }

    pub(super) fn role(&self, thread: usize) -> Role {
        self.roles[thread]
    }

    pub(super) fn with_role(&self, role: Role) -> impl Iterator<Item = usize> + '_ {
        let threads = self.roles.iter().enumerate();
        threads
            .filter(move |(_, other)| **other == role)
            .map(|(n, _)| n)
    }

    pub(super) fn count(&self) -> usize {
        self.roles.len()
    }

    pub(super) fn free(&self) -> Option<usize> {
        self.with_role(Role::Free).next()
    }

    /// Stops the current thread, which takes `role`, makes a free thread current, and returns that
    /// thread. If no thread is free, changes nothing and returns `None`.
    #[must_use]
    pub(super) fn stop(&mut self, role: Role) -> Option<usize> {
        let next = self.free()?;
        self.roles[self.current] = role;
        self.become_current(next);
        Some(next)
    }

    /// Stops the current thread, which takes `role`, and makes the thread `suspended` current. This
    /// thread holds a suspended poll.
    pub(super) fn stop_for(&mut self, role: Role, suspended: usize) {
        debug_assert_eq!(self.roles[suspended], Role::Suspended);
        self.roles[self.current] = role;
        self.become_current(suspended);
    }

    /// Records that a blocked thread has woken up, and that its poll is queued.
    pub(super) fn unblock(&mut self, thread: usize) {
        debug_assert_eq!(self.roles[thread], Role::Blocked);
        self.roles[thread] = Role::Suspended;
    }

    /// Makes `thread`, which is free or holds a suspended poll, current. The former current thread
    /// becomes free.
    pub(super) fn give_to(&mut self, thread: usize) {
        debug_assert!(matches!(
            self.roles[thread],
            Role::Free | Role::Main | Role::Suspended
        ));
        self.roles[self.current] = match self.main {
            Some(main) if main == self.current => Role::Main,
            _ => Role::Free,
        };
        self.become_current(thread);
    }

    fn become_current(&mut self, thread: usize) {
        self.roles[thread] = Role::Current;
        self.current = thread;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{HashSet, VecDeque};

    /// Returns all states that can follow `roles`.
    fn successors(roles: &Roles) -> Vec<Roles> {
        let mut next = Vec::new();
        if roles.count() < 4 {
            let mut extended = roles.clone();
            extended.add();
            next.push(extended);
        }
        for role in [Role::Suspended, Role::Blocked] {
            let mut stopped = roles.clone();
            if stopped.stop(role).is_some() {
                next.push(stopped);
            }
            for suspended in roles.with_role(Role::Suspended) {
                let mut stopped = roles.clone();
                stopped.stop_for(role, suspended);
                next.push(stopped);
            }
        }
        if roles.main.is_none() {
            let mut extended = roles.clone();
            extended.add_main();
            next.push(extended);
        }
        for is_available in [true, false] {
            let mut changed = roles.clone();
            if changed.set_main(is_available) {
                next.push(changed);
            }
        }
        for thread in 0..roles.count() {
            let mut changed = roles.clone();
            match roles.role(thread) {
                Role::Free | Role::Main | Role::Suspended => changed.give_to(thread),
                Role::Blocked => changed.unblock(thread),
                Role::Current | Role::Absent => continue,
            }
            next.push(changed);
        }
        next
    }

    #[test]
    fn in_every_reachable_state_one_thread_is_current_and_every_poll_can_go_on() {
        let mut seen = HashSet::from([Roles::new(4)]);
        let mut queue = VecDeque::from([Roles::new(4)]);
        while let Some(state) = queue.pop_front() {
            assert_eq!(
                state.with_role(Role::Current).collect::<Vec<_>>(),
                [state.current]
            );
            let mut end = state.clone();
            let first = |roles: &Roles, role| roles.with_role(role).next();
            while let Some(thread) = first(&end, Role::Blocked) {
                end.unblock(thread);
            }
            while let Some(thread) = first(&end, Role::Suspended) {
                end.give_to(thread);
            }
            let main_role = end.main.map(|main| end.role(main));
            assert!(matches!(
                main_role,
                None | Some(Role::Main | Role::Absent | Role::Current)
            ));
            for next in successors(&state) {
                if seen.insert(next.clone()) {
                    queue.push_back(next);
                }
            }
        }
        // A search that covers few states would prove little.
        assert!(seen.len() > 100, "states: {}", seen.len());
    }

    #[test]
    fn the_thread_that_made_the_ring_is_preferred() {
        let mut roles = Roles::new(3);
        assert_eq!(roles.stop(Role::Suspended), None);
        roles.add();
        roles.add();
        assert_eq!(roles.stop(Role::Suspended), Some(1));
        roles.give_to(0);
        roles.give_to(2);
        assert_eq!(roles.free(), Some(0));
    }
}
