//! The reference-counted memory of a ring, which lives as long as the ring and its handles.
//!
//! The handles are submissions, streams and received buffers. They point to the memory without
//! atomic counting while the ring lives: the ring's thread counts them in a plain cell, because
//! only this thread creates handles, and a handle that is dropped on another thread sends a message
//! to the mailbox. When the ring is dropped, the value of the cell becomes an atomic count, and the
//! mailbox refuses further messages. The last handle to be dropped then frees the memory. The ring
//! itself is the first handle.
//!
//! [`Shared::is_owner`] compares the calling thread with the thread that owns the ring, at the cost
//! of a load and a call of `pthread_self`. No other thread can be mistaken for the owner, because
//! the ring forgets its owner when it is dropped, and the owner changes only between uses of
//! handles (`owner.rs`).

use crate::catch_panic::catch_panic;
use crate::config::Config;
use crate::counters::count;
use crate::driver::Driver;
use crate::mailbox::{Closed, Mailbox, Message};
use crate::owner::{InUse, Owner, UseHooks, this_thread};
use crate::remote::Kick;
use crate::slot::Slot;
use std::cell::Cell;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

pub(crate) struct Shared {
    /// The owner's thread, or 0.
    owner: AtomicUsize,
    use_hooks: Option<UseHooks>,
    /// Number of handles alive after the mailbox has closed.
    references: AtomicUsize,
    mail: Arc<Mailbox>,
    /// An empty vector that [`Mailbox::collect`] swaps with that of the mailbox.
    spare: Cell<Vec<Message>>,
    pub(crate) driver: Driver,
}

impl Shared {
    pub(crate) fn new(config: &Config, kick: Arc<Kick>) -> io::Result<NonNull<Self>> {
        let mail = Arc::new(Mailbox::new(kick));
        let shared = Self {
            owner: AtomicUsize::new(this_thread()),
            references: AtomicUsize::new(0),
            use_hooks: config.use_hooks,
            mail: mail.clone(),
            spare: Cell::new(Vec::new()),
            driver: Driver::new(config, mail)?,
        };
        Ok(NonNull::from(Box::leak(Box::new(shared))))
    }

    #[inline]
    pub(crate) fn is_owner(&self) -> bool {
        self.owner.load(Ordering::Relaxed) == this_thread()
    }

    #[inline]
    pub(crate) fn begin_use(&self) -> InUse {
        InUse::begin(self.use_hooks)
    }

    pub(crate) fn owner(&self) -> Owner {
        Owner(self.owner.load(Ordering::Relaxed))
    }

    pub(crate) fn assign(&self, owner: Owner) {
        self.owner.store(owner.0, Ordering::Relaxed);
    }

    /// Posts a message that releases no handle.
    pub(crate) fn post(&self, message: Message) -> Result<(), Closed> {
        self.mail.post(message)
    }

    /// Ends a handle. On the ring's thread calls `on_owner`; on any other thread posts `message`,
    /// which must release the handle. If the ring is gone, calls `on_closed` and drops the
    /// handle's reference. `on_closed` may run user code, so it is called after the use has ended.
    ///
    /// # Safety
    /// The caller is a handle (or the ring) and does not touch `this` or its slots afterwards.
    #[inline]
    pub(crate) unsafe fn release(
        this: NonNull<Self>,
        on_owner: impl FnOnce(&Driver),
        message: Message,
        on_closed: impl FnOnce(),
    ) {
        // SAFETY: the pointer is valid, because the caller's handle keeps the memory alive until
        // the handle is released.
        let shared = unsafe { this.as_ref() };
        let in_use = shared.begin_use();
        if shared.is_owner() {
            on_owner(&shared.driver);
            if shared.is_owner() {
                let handles = &shared.driver.handles;
                handles.set(handles.get() - 1);
            } else {
                // `on_owner` has dropped the ring itself.
                // SAFETY: the mailbox has closed, and this handle has not been released.
                unsafe { Self::leave(this) };
            }
            return;
        }
        // Cloned, because the owner may free all memory as soon as the message is posted.
        let mail = shared.mail.clone();
        if mail.post(message) == Err(Closed) {
            drop(in_use);
            catch_panic(on_closed);
            // SAFETY: the mailbox has closed, and this handle has not been released.
            unsafe { Self::leave(this) };
        }
    }

    /// Drops one atomic reference.
    ///
    /// # Safety
    /// The mailbox has closed; called once per handle, as its last act.
    pub(crate) unsafe fn leave(this: NonNull<Self>) {
        // SAFETY: the pointer is valid, because the reference that is dropped here keeps the memory
        // alive.
        if unsafe { this.as_ref() }
            .references
            .fetch_sub(1, Ordering::AcqRel)
            == 1
        {
            // SAFETY: `new` leaked this box, and the last reference was dropped above, so the box
            // is freed once and is not in use.
            drop(unsafe { Box::from_raw(this.as_ptr()) });
        }
    }

    /// Handles the messages in the mailbox. Returns false if there were none, at the cost of one
    /// load. Owner only.
    #[inline]
    pub(crate) fn read_mail(&self) -> bool {
        let has_mail = self.mail.has_mail();
        if has_mail {
            self.read_messages();
        }
        has_mail
    }

    #[cold]
    fn read_messages(&self) {
        let mut messages = self.spare.take();
        self.mail.collect(&mut messages);
        for message in messages.drain(..) {
            count(&self.driver.counters.messages);
            self.handle(message);
        }
        self.spare.set(messages);
    }

    fn handle(&self, message: Message) {
        let driver = &self.driver;
        // SAFETY: slots live as long as `self`, so the pointers in messages are valid.
        let slot_ref = |slot: NonNull<Slot>| unsafe { &*slot.as_ptr().cast_const() };
        let release = || driver.handles.set(driver.handles.get() - 1);
        match message {
            Message::Free {
                slot,
                releases_handle,
            } => {
                driver.slab.give_back(slot_ref(slot));
                if releases_handle {
                    release();
                }
            }
            Message::Abandon(slot) => {
                driver.abandon(slot_ref(slot));
                release();
            }
            Message::AbandonStream(slot) => {
                driver.abandon_stream(slot_ref(slot));
                release();
            }
            Message::Recycle(event) => {
                driver.recycle_event(slot_ref(event));
                release();
            }
            Message::Cancel(slot, generation) => {
                if slot_ref(slot).generation.get() == generation {
                    driver.cancel(slot_ref(slot));
                }
            }
            Message::Arm(slot, generation) => {
                if slot_ref(slot).generation.get() == generation {
                    driver.arm(slot_ref(slot));
                }
            }
        }
    }

    /// Cancels everything and returns when nothing is in flight. Returns false if the kernel
    /// refuses even to wait. Owner only.
    pub(crate) fn shutdown(&self) -> bool {
        // The owner takes no deferred user code after the shutdown.
        self.driver.deferred.run_all();
        if self.driver.begin_shutdown() {
            let mut round = 0;
            self.read_mail();
            while !self.driver.is_idle() {
                if self.driver.drain(round).is_err() {
                    return false;
                }
                self.read_mail();
                round += 1;
            }
        }
        self.driver.is_idle()
    }

    /// Ends the ring: shuts down, closes, and leaves the memory to the remaining handles.
    ///
    /// # Safety
    /// Called once, by the ring, on its thread, as its last act.
    pub(crate) unsafe fn close(this: NonNull<Self>) {
        // SAFETY: the pointer is valid, because the ring is a handle and keeps the memory alive.
        let shared = unsafe { this.as_ref() };
        if !shared.shutdown() {
            // Leak the ring, because its buffers may stay in flight forever and must not be freed.
            return;
        }
        let freeze_handle_count = || {
            shared
                .references
                .store(shared.driver.handles.get(), Ordering::Relaxed);
        };
        while !shared.mail.close(freeze_handle_count) {
            shared.read_messages();
        }
        shared.owner.store(0, Ordering::Relaxed);
        shared.driver.pools.withdraw(&shared.driver.backend);
        // SAFETY: nothing is in flight, and this is the last use of the backend, because without
        // an owner the driver is not called again.
        unsafe { shared.driver.backend.close() };
        // SAFETY: the mailbox has closed, and the ring does not touch the memory again.
        unsafe { Self::leave(this) };
    }
}
