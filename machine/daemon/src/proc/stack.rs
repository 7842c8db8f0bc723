//! [`Stack`] collects values from many threads, and one thread takes them all at once. [`Answers`]
//! is a stack that wakes the thread that takes from it.
//!
//! Neither putting nor taking waits, so an elevated thread may use a stack whose other side is a
//! preempted ordinary thread. Each value costs one allocation.
//!
//! Unsafe code: the pointers of the stack.
#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

pub(crate) struct Stack<T> {
    head: AtomicPtr<Node<T>>,
    _owns: PhantomData<T>,
}

struct Node<T> {
    value: T,
    next: *mut Node<T>,
}

// SAFETY: a stack owns its values, so sending the stack sends only values, and `T` is `Send`.
unsafe impl<T: Send> Send for Stack<T> {}
// SAFETY: threads that share the stack only move values in and out, for which `T: Send` is enough.
// The stack gives out no references to values.
unsafe impl<T: Send> Sync for Stack<T> {}

impl<T> Default for Stack<T> {
    fn default() -> Stack<T> {
        Stack {
            head: AtomicPtr::new(null_mut()),
            _owns: PhantomData,
        }
    }
}

impl<T> fmt::Debug for Stack<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stack")
    }
}

impl<T> Stack<T> {
    pub(crate) fn put(&self, value: T) {
        let mut next = self.head.load(Relaxed);
        let node = Box::into_raw(Box::new(Node { value, next }));
        while let Err(now) = self
            .head
            .compare_exchange_weak(next, node, Release, Relaxed)
        {
            next = now;
            // SAFETY: the node is a live `Box` that is not in the stack yet, so only this thread
            // has a pointer to it.
            unsafe { (*node).next = next };
        }
    }

    /// Takes all values, oldest first.
    pub(crate) fn take(&self) -> Vec<T> {
        let mut node = self.head.swap(null_mut(), Acquire);
        let mut all = Vec::new();
        while !node.is_null() {
            // SAFETY: `put` created the pointer with `Box::into_raw`. Only this thread has taken
            // the node out of the stack, so it becomes a `Box` once.
            let taken = unsafe { Box::from_raw(node) };
            node = taken.next;
            all.push(taken.value);
        }
        all.reverse();
        all
    }
}

impl<T> Drop for Stack<T> {
    fn drop(&mut self) {
        self.take();
    }
}

/// A stack with the eventfd that wakes the thread which takes from it.
#[derive(Debug)]
pub(crate) struct Answers<T> {
    stack: Stack<T>,
    pub(crate) eventfd: OwnedFd,
}

impl<T> Answers<T> {
    pub(crate) fn new() -> io::Result<Answers<T>> {
        Ok(Answers {
            stack: Stack::default(),
            eventfd: upshift_board::os::doorbell()?,
        })
    }

    pub(crate) fn put(&self, answer: T) {
        self.stack.put(answer);
        // Ringing an open non-blocking eventfd fails only if its counter is full, and then the
        // thread that takes the answers is woken as well.
        let _ = upshift_board::os::ring(self.eventfd.as_fd());
    }

    pub(crate) fn take(&self) -> Vec<T> {
        let mut word = [0u8; 8];
        let _ = rustix::io::read(&self.eventfd, &mut word);
        self.stack.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_gives_each_value_once_and_in_order() {
        let stack = Stack::default();
        std::thread::scope(|scope| {
            for thread in 0..4u32 {
                let stack = &stack;
                scope.spawn(move || (0..1000u32).for_each(|value| stack.put((thread, value))));
            }
            let mut next = [0; 4];
            while next != [1000; 4] {
                for (thread, value) in stack.take() {
                    assert_eq!(value, next[thread as usize]);
                    next[thread as usize] += 1;
                }
            }
        });
        stack.put((0, 0));
    }
}
