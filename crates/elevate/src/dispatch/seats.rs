//! [`Seats`]: which thread of a vCPU serves it, which are free, and which hold a suspended poll.
//!
//! Exactly one seat is [`Role::Current`]. Seat 0 owns the ring: it is preferred whenever it is free.

/// What a seat is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Its thread waits to be given the vCPU.
    Free,
    /// Its thread serves the vCPU.
    Current,
    /// Its thread was stopped in the middle of a poll.
    Suspended,
}

/// The seats of one vCPU. All operations are O(1) but those that look for a free seat, which are linear in the seats.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Seats {
    roles: Vec<Role>,
    current: usize,
    suspended: usize,
}

impl Seats {
    /// Seat 0, which is current.
    #[must_use]
    pub fn new() -> Seats {
        Seats {
            roles: vec![Role::Current],
            current: 0,
            suspended: 0,
        }
    }

    /// Adds a free seat; returns its number.
    pub fn add(&mut self) -> usize {
        self.roles.push(Role::Free);
        self.roles.len() - 1
    }

    /// How many seats there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.roles.len()
    }

    /// The seat that serves.
    #[must_use]
    pub fn current(&self) -> usize {
        self.current
    }

    /// How many hold a suspended poll.
    #[must_use]
    pub fn suspended(&self) -> usize {
        self.suspended
    }

    /// What a seat is doing.
    #[must_use]
    pub fn role(&self, seat: usize) -> Role {
        self.roles[seat]
    }

    /// The free seat to use next.
    #[must_use]
    pub fn free(&self) -> Option<usize> {
        self.roles.iter().position(|role| *role == Role::Free)
    }

    /// Another free seat than the one that [`free`](Seats::free) names?
    #[must_use]
    pub fn has_spare(&self) -> bool {
        self.roles
            .iter()
            .filter(|role| **role == Role::Free)
            .nth(1)
            .is_some()
    }

    /// The current seat is stopped in the middle of its poll; returns the seat that is current now. `None`, and nothing
    /// changes, if no seat is free.
    #[must_use]
    pub fn suspend(&mut self) -> Option<usize> {
        let next = self.free()?;
        self.roles[self.current] = Role::Suspended;
        self.suspended += 1;
        self.become_current(next);
        Some(next)
    }

    /// The current seat gives the vCPU to a suspended one and is free.
    ///
    /// # Panics
    /// If `seat` is not suspended.
    pub fn resume(&mut self, seat: usize) {
        assert_eq!(
            self.roles[seat],
            Role::Suspended,
            "seat {seat} to be resumed"
        );
        self.suspended -= 1;
        self.roles[self.current] = Role::Free;
        self.become_current(seat);
    }

    /// The current seat gives the vCPU to a free one and is free.
    ///
    /// # Panics
    /// If `seat` is not free.
    pub fn hand_over(&mut self, seat: usize) {
        assert_eq!(
            self.roles[seat],
            Role::Free,
            "seat {seat} to be handed over to"
        );
        self.roles[self.current] = Role::Free;
        self.become_current(seat);
    }

    fn become_current(&mut self, seat: usize) {
        self.roles[seat] = Role::Current;
        self.current = seat;
    }
}

impl Default for Seats {
    fn default() -> Seats {
        Seats::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::collections::{HashSet, VecDeque};

    /// All that can follow from a state, by any of the operations.
    fn successors(seats: &Seats) -> Vec<Seats> {
        let mut next = Vec::new();
        if seats.count() < 4 {
            let mut more = seats.clone();
            more.add();
            next.push(more);
        }
        let mut stopped = seats.clone();
        if stopped.suspend().is_some() {
            next.push(stopped);
        }
        for seat in 0..seats.count() {
            let mut other = seats.clone();
            match seats.role(seat) {
                Role::Free => other.hand_over(seat),
                Role::Suspended => other.resume(seat),
                Role::Current => continue,
            }
            next.push(other);
        }
        next
    }

    #[test]
    fn in_every_reachable_state_one_seat_is_current_and_every_poll_can_be_resumed() {
        let mut seen = HashSet::from([Seats::new()]);
        let mut queue = VecDeque::from([Seats::new()]);
        while let Some(state) = queue.pop_front() {
            let count = |role| {
                (0..state.count())
                    .filter(|s| state.role(*s) == role)
                    .count()
            };
            assert_eq!(count(Role::Current), 1, "{state:?}");
            assert_eq!(state.role(state.current()), Role::Current, "{state:?}");
            assert_eq!(count(Role::Suspended), state.suspended(), "{state:?}");
            assert_eq!(state.free().is_some(), count(Role::Free) > 0, "{state:?}");
            assert_eq!(state.has_spare(), count(Role::Free) > 1, "{state:?}");
            // From anywhere, resuming all one after the other leads to a state with nothing suspended.
            let mut end = state.clone();
            while let Some(seat) = (0..end.count()).find(|s| end.role(*s) == Role::Suspended) {
                end.resume(seat);
            }
            assert_eq!(end.suspended(), 0);
            for next in successors(&state) {
                if seen.insert(next.clone()) {
                    queue.push_back(next);
                }
            }
        }
        assert!(seen.len() > 30, "{}", seen.len());
    }

    #[test]
    fn without_a_free_seat_nothing_is_suspended() {
        let mut seats = Seats::new();
        assert_eq!(seats.suspend(), None);
        seats.add();
        assert_eq!(seats.suspend(), Some(1));
        let full = seats.clone();
        assert_eq!(seats.suspend(), None);
        assert_eq!(seats, full);
    }

    #[test]
    fn the_owner_of_the_ring_is_preferred() {
        let mut seats = Seats::new();
        seats.add();
        seats.add();
        assert_eq!(seats.suspend(), Some(1));
        seats.resume(0);
        seats.hand_over(2);
        assert_eq!(seats.free(), Some(0));
        assert_eq!(seats.suspend(), Some(0));
    }
}
