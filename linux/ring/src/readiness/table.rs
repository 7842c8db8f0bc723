//! The operations that the readiness driver has under way, and for each descriptor the list of the
//! operations that wait until it is ready.

use crate::offload::Call;
use crate::readiness::attempt::Group;
use crate::readiness::epoll::{Event, NO_EVENT};
use crate::readiness::sqe::Sqe;
use std::os::fd::RawFd;
use std::sync::Arc;

/// Maximum number of events that one fetch takes.
pub(super) const MAX_EVENTS: usize = 256;

/// The end of a list of operations.
pub(super) const NONE: u32 = u32::MAX;

pub(super) struct State {
    pub(super) operations: Vec<Operation>,
    pub(super) descriptors: Vec<Descriptor>,
    pub(super) groups: Vec<Option<Group>>,
    /// The eventfd with which other threads wake the ring's thread, while it is registered.
    pub(super) kicks: Option<RawFd>,
    pub(super) events: Box<[Event; MAX_EVENTS]>,
}

#[derive(Clone)]
pub(super) struct Operation {
    pub(super) sqe: Sqe,
    pub(super) level: u8,
    /// Number of bytes transferred so far, if the operation must transfer all its bytes.
    pub(super) bytes_done: u32,
    pub(super) status: Status,
}

#[derive(Clone)]
pub(super) enum Status {
    Free,
    /// Member of the list of its descriptor, for these events.
    Waits {
        events: u32,
        next: u32,
    },
    Offloaded(Arc<Call>),
}

#[derive(Clone, Copy)]
pub(super) struct Descriptor {
    pub(super) first: u32,
    pub(super) last: u32,
    /// Registered events, or 0 if the descriptor is not registered.
    pub(super) events: u32,
}

pub(super) const UNREGISTERED: Descriptor = Descriptor {
    first: NONE,
    last: NONE,
    events: 0,
};

impl State {
    pub(super) fn new() -> Self {
        Self {
            operations: Vec::new(),
            descriptors: Vec::new(),
            groups: Vec::new(),
            kicks: None,
            events: Box::new([NO_EVENT; MAX_EVENTS]),
        }
    }

    pub(super) fn operation(&mut self, sqe: &Sqe) -> &mut Operation {
        let index = sqe.user_data as u32 as usize;
        if self.operations.len() <= index {
            let free = Operation {
                sqe: *sqe,
                level: 0,
                bytes_done: 0,
                status: Status::Free,
            };
            self.operations.resize(index + 1, free);
        }
        &mut self.operations[index]
    }

    /// Returns the operation with this `user_data`, if it is under way.
    pub(super) fn find(&mut self, user_data: u64) -> Option<&mut Operation> {
        let operation = self.operations.get_mut(user_data as u32 as usize)?;
        let is_same = operation.sqe.user_data == user_data;
        (is_same && !matches!(operation.status, Status::Free)).then_some(operation)
    }

    pub(super) fn append(&mut self, fd: RawFd, index: u32) {
        let Descriptor { first, last, .. } = &mut self.descriptors[fd as usize];
        if *first == NONE {
            *first = index;
        } else {
            *self.operations[*last as usize].successor() = index;
        }
        *last = index;
    }

    /// Removes an operation from the list of its descriptor. Returns the events for which the
    /// other operations wait.
    pub(super) fn unlink(&mut self, fd: RawFd, target: u32) -> u32 {
        let mut wanted = 0;
        let mut index = self.descriptors[fd as usize].first;
        let mut previous = NONE;
        while index != NONE {
            let Status::Waits { events, next } = self.operations[index as usize].status else {
                unreachable!("operations in the list wait");
            };
            if index == target {
                let descriptor = &mut self.descriptors[fd as usize];
                if next == NONE {
                    descriptor.last = previous;
                }
                match previous {
                    NONE => descriptor.first = next,
                    previous => *self.operations[previous as usize].successor() = next,
                }
            } else {
                wanted |= events;
                previous = index;
            }
            index = next;
        }
        wanted
    }
}

impl Operation {
    fn successor(&mut self) -> &mut u32 {
        match &mut self.status {
            Status::Waits { next, .. } => next,
            _ => unreachable!("operations in the list wait"),
        }
    }
}
